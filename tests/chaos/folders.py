"""Run folders: what two must have in common, and ways to damage one."""

from __future__ import annotations

import csv
import io
import json
import random
import shutil
from pathlib import Path
from typing import Any

# Times, digests of files with times, and the state of the result files, which are compared themselves.
VOLATILE = ("seconds", "results", "seconds_by_part", "seconds_per_round", "samples_per_second", "digest")
VOLATILE_ENDS = ("_seconds", "_digest", "_sha256")


def contents(folder: Path) -> dict[str, Any]:
    """Returns the contents of all files by name, without times; of the checkpoints, only the newest.

    Locks are left out: they may remain. Temporary files are not.
    """
    found: dict[str, Any] = {}
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        if file.suffix == ".lock":
            continue
        name = str(file.relative_to(folder))
        if file.parent.name == "checkpoint" and file.stem.startswith("round-"):
            name = str(file.relative_to(folder).with_name(f"newest{file.suffix}"))  # names are sorted by round
        found[name] = content(file)
    return found


def content(file: Path) -> Any:
    """Returns the content of a file without times; its bytes if it is not JSON."""
    data = file.read_bytes()
    if file.suffix == ".csv":
        rows = csv.DictReader(io.StringIO(data.decode(errors="replace"), newline=""))
        return [without_times({str(name): value for name, value in row.items()}) for row in rows]
    if file.suffix in (".json", ".jsonl"):
        try:
            return [
                without_times(json.loads(line)) for line in ([data] if file.suffix == ".json" else data.splitlines())
            ]
        except ValueError:
            pass
    return data


def without_times(value: Any) -> Any:
    """Returns a JSON value without times and digests."""
    if isinstance(value, list):
        return [without_times(entry) for entry in value]
    if isinstance(value, dict):
        return {
            name: without_times(entry)
            for name, entry in value.items()
            if name not in VOLATILE and not name.endswith(VOLATILE_ENDS)
        }
    return value


def differences(expected: dict[str, Any], found: dict[str, Any]) -> str:
    """Describes the files that differ; empty if none does."""
    lines = []
    for name in sorted(expected.keys() | found.keys()):
        if name not in found:
            lines.append(f"{name} is missing")
        elif name not in expected:
            lines.append(f"{name} should not exist")
        elif expected[name] != found[name]:
            lines.append(f"{name} differs: {_first_difference(expected[name], found[name])}")
    return "; ".join(lines)


def _first_difference(expected: Any, found: Any) -> str:
    if isinstance(expected, bytes) or isinstance(found, bytes):
        return f"{len(expected)} against {len(found)} {'bytes' if isinstance(found, bytes) else 'entries'}"
    if len(expected) != len(found):
        return f"{len(found)} entries, expected {len(expected)}"
    for one, other in zip(expected, found, strict=True):
        if one != other:
            names = [n for n in {**one, **other} if one.get(n) != other.get(n)]
            return ", ".join(f"{n} is {str(other.get(n))[:60]}, expected {str(one.get(n))[:60]}" for n in names[:2])
    return ""


def damage(folder: Path, random_: random.Random) -> str:
    """Damages or deletes one file, or deletes a folder; returns a description."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock")
    if random_.random() < 0.1:
        victim = random_.choice([path for path in sorted(folder.iterdir()) if path.is_dir()])
        shutil.rmtree(victim)
        return f"{victim.name}/ deleted"
    file = random_.choice(files)
    data = bytearray(file.read_bytes())
    kind = random_.choice(("bit", "bit", "bit", "byte", "cut", "emptied", "deleted", "replaced", "repeated", "noise"))
    if kind == "deleted":
        file.unlink()
        return f"{file.relative_to(folder)} deleted"
    if kind == "replaced":
        data = bytearray(random_.choice(files).read_bytes())
    elif kind == "noise":
        data = bytearray(random_.randbytes(len(data)))
    elif kind == "repeated":
        data *= 2
    elif kind in ("cut", "emptied"):
        del data[random_.randrange(len(data)) if kind == "cut" and data else 0 :]
    elif data:
        place = random_.randrange(len(data))
        data[place] = data[place] ^ (1 << random_.randrange(8)) if kind == "bit" else random_.randrange(256)
    file.write_bytes(data)
    return f"{file.relative_to(folder)}: {kind}"
