"""Results files, one per kind of machine, committed."""

from __future__ import annotations

import json
from pathlib import Path

from bench import machine


def results_file() -> Path:
    return Path(__file__).parent / f"{machine.slug()}.json"


def stored(file: Path) -> dict:
    if not file.exists():
        raise SystemExit(f"no results of this machine in {file}; python -m bench.end_to_end measures them")
    return json.loads(file.read_text())


def write(file: Path, results: dict) -> None:
    file.write_text(json.dumps(rounded(results), indent=1) + "\n")


def rounded(value: object) -> object:
    """Rounds floats to six digits; more would be noise in a committed file."""
    if isinstance(value, dict):
        return {name: rounded(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [rounded(inner) for inner in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value
