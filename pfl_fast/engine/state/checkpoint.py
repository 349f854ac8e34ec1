"""Checkpoints: the whole state of a run on disk, as safetensors and JSON, never pickle.

    checkpoint/round-000012.safetensors     server tensors, stored tensors of clients that have trained, pending uploads
    checkpoint/round-000012.json            everything else, and digests of both files; written last

The JSON file completes the checkpoint and, with it, all rounds before: it also holds the settings of the run and the
rows of result files that are not in a checkpoint before it. Each file is written under a temporary name, flushed and
renamed, so it is either complete or absent. The last two checkpoints are kept. Digests detect truncated and edited
files; the checkpoint before is used instead, as after any other failure to read a checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from pfl_fast import atomic
from pfl_fast.engine.client_results import Bests, LocalReport, Score
from pfl_fast.engine.state.run_state import PartialRound, RunState
from pfl_fast.engine.state.tensor_file import save_file
from pfl_fast.errors import PflFastError
from pfl_fast.methods.base import Tensors

FORMAT = 3
KEPT = 2  # checkpoints
_NO_SECONDS = {"data_seconds": 0.0, "test_seconds": 0.0}  # spent before the clock of the resumed round starts


class CheckpointError(PflFastError):
    """A checkpoint cannot be written or read."""


@dataclass(frozen=True)
class RunInfo:
    """Facts about a run that are saved with its state.

    Attributes:
        result_settings: settings and options that determine the results.
        rounds: planned number of rounds.
        bests: best accuracies of each client.
        config: contents of ``config.toml``.
        results: state of each result file, by name.
    """

    result_settings: dict[str, Any]
    rounds: int
    bests: Bests
    config: str
    results: dict[str, Any]


def save(state: RunState, folder: Path, run_info: RunInfo) -> Path:
    """Writes the state of a run; returns the JSON file."""
    unfinished = state.unfinished
    name = f"round-{state.rounds_done:06d}" + (f"-{len(unfinished.reports)}" if unfinished.reports else "")
    meta = {
        "format": FORMAT,
        "rounds_done": state.rounds_done,
        "touched": state.clients.touched.nonzero().flatten().tolist(),
        "reports": {client: asdict(report) for client, report in unfinished.reports.items()},
        "scores": {c: {split: asdict(s) for split, s in by.items()} for c, by in unfinished.scores.items()},
        "run_info": asdict(run_info),
    }
    tensors_file = folder / f"{name}.safetensors"
    target = folder / f"{name}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with atomic.new_file(tensors_file) as temporary:
            save_file(_tensors_of(state), temporary)
        meta = json.loads(json.dumps(meta))  # keys become text, as the digest sees them after reading
        meta["tensors"] = file_digest(tensors_file)
        meta["digest"] = json_digest(meta)
        atomic.write_text(target, json.dumps(meta, indent=1))
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"{target}: cannot be written ({error}); the checkpoint before it is kept, free some space and resume"
        ) from error
    with suppress(OSError):  # what is left over takes space, and is removed after the next checkpoint
        _remove_others(folder, target)
    return target


def _tensors_of(state: RunState) -> Tensors:
    tensors = {f"server/{name}": t.contiguous() for name, t in state.server.items()}
    touched = state.clients.touched
    tensors.update({f"client/{name}": block[touched] for name, block in state.clients.blocks.items()})
    if state.unfinished.reports:
        tensors.update({f"upload/{name}": t for name, t in state.unfinished.uploads.items()})
    return tensors


def restore(
    state: RunState, folder: Path, log: Callable[[str], None], accept: Callable[[RunInfo], None] = lambda _info: None
) -> RunInfo | None:
    """Restores the newest usable checkpoint. Returns the facts saved with it, or None without checkpoints.

    Args:
        state: state of the same experiment before its first round; overwritten.
        folder: folder of the checkpoints.
        log: receives a message about each checkpoint that cannot be used.
        accept: called with the facts before the state is overwritten; an error makes the checkpoint unusable.
    """
    problems = []
    for file in checkpoints(folder):
        try:
            return _restore(state, file, accept)
        except CheckpointError as error:
            problems.append(str(error))
            log(f"{error}; using the checkpoint before it")
    if problems:
        listed = "\n".join(f"  {problem}" for problem in problems)
        raise CheckpointError(
            f"{folder}: no checkpoint can be used:\n{listed}\nput back the files from a copy, or start a new run in "
            "another folder"
        )
    return None


def newest_info(folder: Path) -> RunInfo | None:
    """Returns the facts of the newest checkpoint whose JSON file is undamaged, or None; tensors are not read."""
    for file in checkpoints(folder):
        with suppress(Exception):  # restore reports the damage
            return RunInfo(**_read_json(file)["run_info"])
    return None


def checkpoints(folder: Path) -> list[Path]:
    """JSON files of the checkpoints, newest first."""
    return sorted((f for f in folder.glob("round-*.json") if _round_key(f)), key=_round_key, reverse=True)


def _round_key(file: Path) -> tuple[int, ...]:
    """Finished rounds and trained clients of the next round; empty for other files."""
    found = re.fullmatch(r"round-(\d+)(?:-(\d+))?", file.stem, re.ASCII)
    return tuple(int(number or 0) for number in found.groups()) if found else ()


def _restore(state: RunState, file: Path, accept: Callable[[RunInfo], None]) -> RunInfo:
    try:
        meta, tensors = _read(file)
        touched = torch.zeros_like(state.clients.touched)
        touched[meta["touched"]] = True
        _check_fits(state, tensors, int(touched.sum()))
        kept = state.clients.keeps[touched]
        device = next((t.device for t in state.server.values()), torch.device("cpu"))
        unfinished = PartialRound(
            {int(client): LocalReport(**{**report, **_NO_SECONDS}) for client, report in meta["reports"].items()},
            {int(c): {split: Score(**score) for split, score in by.items()} for c, by in meta["scores"].items()},
            {name.removeprefix("upload/"): t.to(device) for name, t in tensors.items() if name.startswith("upload/")},
        )
        run_info = RunInfo(**meta["run_info"])
        run_info.bests.update({n: {int(c): best for c, best in by.items()} for n, by in run_info.bests.items()})
        rounds_done = int(meta["rounds_done"])
        accept(run_info)
    except Exception as error:  # damage may show anywhere
        raise CheckpointError(f"{file}: cannot be used ({_reason(error)})") from error
    touched &= state.clients.keeps
    state.clients.reserve(touched.nonzero().flatten().tolist())
    # Written last, so that an unusable checkpoint leaves the state unchanged.
    state.server.update({name: tensors[f"server/{name}"].to(device) for name in state.server})
    state.clients.touched.copy_(touched)
    for name, block in state.clients.blocks.items():
        saved = tensors[f"client/{name}"]
        block[touched] = (saved if kept.all() else saved[kept]).to(block.device)
    state.rounds_done, state.unfinished = rounds_done, unfinished
    return run_info


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, (PflFastError, OSError)) else f"{type(error).__name__}: {error}"


def _read(file: Path) -> tuple[dict[str, Any], Tensors]:
    tensors_file, meta = file.with_suffix(".safetensors"), _read_json(file)
    if file_digest(tensors_file) != meta["tensors"]:
        raise CheckpointError(f"{tensors_file.name} was truncated or changed since it was written")
    return meta, load_file(tensors_file)


def _read_json(file: Path) -> dict[str, Any]:
    meta: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    if meta["format"] != FORMAT:
        raise CheckpointError(f"written in format {meta['format']}, this version reads format {FORMAT}")
    if json_digest(meta) != meta["digest"]:
        raise CheckpointError("truncated or changed since it was written")
    return meta


def _check_fits(state: RunState, tensors: Tensors, clients: int) -> None:
    here = {f"server/{name}": list(t.shape) for name, t in state.server.items()}
    here.update({f"client/{name}": [clients, *b.shape[1:]] for name, b in state.clients.blocks.items()})
    there = {name: list(t.shape) for name, t in tensors.items() if not name.startswith("upload/")}
    for name in sorted(here.keys() | there.keys()):
        if here.get(name) != there.get(name):
            raise CheckpointError(
                f"it belongs to another model or method: {name} has shape {here.get(name, 'none')} in this run, "
                f"{there.get(name, 'none')} in the checkpoint"
            )


def file_digest(file: Path) -> str:
    """Returns the BLAKE2b digest of a file."""
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def json_digest(meta: dict[str, Any]) -> str:
    """Returns the BLAKE2b digest of all JSON content except the digest itself."""
    content = {name: value for name, value in meta.items() if name != "digest"}
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=16).hexdigest()


def _remove_others(folder: Path, newest: Path) -> None:
    """Removes all checkpoints but the newest two.

    Those with a higher number could not be used when the run was resumed, and their rounds have been trained again.
    """
    before = [file for file in checkpoints(folder) if _round_key(file) < _round_key(newest)]
    kept = {newest.stem, *(file.stem for file in before[: KEPT - 1])}
    for file in [*folder.glob("round-*.json"), *folder.glob("round-*.safetensors"), *folder.glob(".*.tmp")]:
        if file.stem not in kept and (_round_key(file) or file.suffix == ".tmp"):
            file.unlink()
