"""All state of a run on disk: safetensors for tensors, JSON for the rest, never pickle.

    checkpoint/round-000012.safetensors     the server's tensors, rows of clients that ever trained, uploads under way
    checkpoint/round-000012.json            everything else, and the digest of the other file; written last

Both are written under another name, flushed and renamed, so that a file is whole or not there; the last two are kept. A
file that was cut short or edited is noticed by its digest, and the checkpoint before it is used.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from pfl_fast.engine.local.progress import LocalReport
from pfl_fast.engine.results.metrics import Score
from pfl_fast.engine.state.run_state import PartialRound, RunState
from pfl_fast.errors import PflFastError
from pfl_fast.methods.base import Tensors

FORMAT = 1
KEPT = 2


class CheckpointError(PflFastError):
    """A checkpoint cannot be written or read."""


def save(state: RunState, folder: Path, extra: dict[str, Any]) -> Path:
    """Writes the state of a run; ``extra`` is kept beside it. Returns the JSON file."""
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = state.unfinished
    name = f"round-{state.rounds_done:06d}" + (f"-{len(unfinished.reports)}" if unfinished.reports else "")
    meta = {
        "format": FORMAT,
        "rounds_done": state.rounds_done,
        "touched": state.clients.touched.nonzero().flatten().tolist(),
        "reports": {client: asdict(report) for client, report in unfinished.reports.items()},
        "scores": {c: {split: asdict(s) for split, s in by.items()} for c, by in unfinished.scores.items()},
        "extra": extra,
    }
    tensors_file = folder / f"{name}.safetensors"
    _replace(tensors_file, lambda file: save_file(_tensors_of(state), file))
    meta["digest"] = digest(tensors_file)
    target = folder / f"{name}.json"
    _replace(target, lambda file: file.write_text(json.dumps(meta, indent=1)))
    _remove_old(folder, keep=target)
    return target


def _tensors_of(state: RunState) -> Tensors:
    tensors = {f"server/{name}": t.contiguous() for name, t in state.server.items()}
    touched = state.clients.touched
    tensors.update({f"client/{name}": block[touched] for name, block in state.clients.blocks.items()})
    if state.unfinished.reports:
        tensors.update({f"upload/{name}": t for name, t in state.unfinished.uploads.items()})
    return tensors


def restore(state: RunState, folder: Path, report: Callable[[str], None]) -> dict[str, Any] | None:
    """Puts a run back to its newest good checkpoint; None if there is none. Returns what was kept beside it.

    Args:
        state: state of the same experiment, before its first round.
        folder: as for :func:`save`.
        report: told about checkpoints that cannot be used.
    """
    files = sorted(folder.glob("round-*.json"), key=_age, reverse=True)
    for file in files:
        try:
            meta, tensors = _read(file)
            _fill(state, meta, tensors)
        except CheckpointError as error:
            report(f"{error}; using the one before it")
        else:
            return dict(meta["extra"])
    if files:
        raise CheckpointError(f"{folder}: no checkpoint can be used; start the run anew in another folder")
    return None


def _age(file: Path) -> tuple[int, int]:
    numbers = [int(n) for n in file.stem.split("-")[1:]]
    return numbers[0], numbers[1] if len(numbers) > 1 else 0


def _read(file: Path) -> tuple[dict[str, Any], Tensors]:
    tensors_file = file.with_suffix(".safetensors")
    try:
        meta = json.loads(file.read_text())
        if meta["format"] != FORMAT:
            raise CheckpointError(f"{file}: written in format {meta['format']}, this version reads {FORMAT}")
        if digest(tensors_file) != meta["digest"]:
            raise CheckpointError(f"{tensors_file}: cut short or changed since it was written")
        return meta, load_file(tensors_file)
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise CheckpointError(f"{file}: cannot be read ({error})") from error


def _fill(state: RunState, meta: dict[str, Any], tensors: Tensors) -> None:
    _check_fits(state, tensors, meta)
    state.rounds_done = meta["rounds_done"]
    state.server.update({name: tensors[f"server/{name}"].to(t.device) for name, t in state.server.items()})
    state.clients.touched.zero_()
    state.clients.touched[meta["touched"]] = True
    for name, block in state.clients.blocks.items():
        block[state.clients.touched] = tensors[f"client/{name}"]
    device = next((t.device for t in state.server.values()), torch.device("cpu"))
    state.unfinished = PartialRound(
        {int(client): LocalReport(**report) for client, report in meta["reports"].items()},
        {int(c): {split: Score(**score) for split, score in by.items()} for c, by in meta["scores"].items()},
        {name[7:]: t.to(device) for name, t in tensors.items() if name.startswith("upload/")},
    )


def _check_fits(state: RunState, tensors: Tensors, meta: dict[str, Any]) -> None:
    count = len(meta["touched"])
    here = {f"server/{name}": list(t.shape) for name, t in state.server.items()}
    here.update({f"client/{name}": [count, *b.shape[1:]] for name, b in state.clients.blocks.items()})
    there = {name: list(t.shape) for name, t in tensors.items() if not name.startswith("upload/")}
    for name in sorted(here.keys() | there.keys()):
        if here.get(name) != there.get(name):
            raise CheckpointError(
                f"the checkpoint is of another model or method: {name} is {here.get(name, 'nothing')} here, "
                f"{there.get(name, 'nothing')} there"
            )


def digest(file: Path) -> str:
    """BLAKE2b of a file."""
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def _replace(target: Path, write: Callable[[Path], object]) -> None:
    """Writes a file whole or not at all."""
    temporary = target.with_name(target.name + ".new")
    try:
        write(temporary)
        with temporary.open("rb") as handle:
            os.fsync(handle.fileno())
        temporary.replace(target)
    except (OSError, SafetensorError) as error:
        temporary.unlink(missing_ok=True)
        raise CheckpointError(
            f"{target}: cannot be written ({error}); the checkpoint before it is kept, free some space and resume"
        ) from error


def _remove_old(folder: Path, keep: Path) -> None:
    files = sorted(folder.glob("round-*.json"), key=_age, reverse=True)
    kept = {keep, *files[:KEPT]}
    for file in files:
        if file not in kept:
            file.unlink()
            file.with_suffix(".safetensors").unlink(missing_ok=True)
    names = {file.stem for file in kept}
    for file in folder.glob("round-*.safetensors"):
        if file.stem not in names:
            file.unlink()
