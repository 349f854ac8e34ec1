"""Damaged checkpoints: every change is harmless or detected, and the checkpoint before is used."""

import json

import pytest
import torch

from pfl_fast.engine.state import checkpoint
from pfl_fast.engine.stopping import Interrupted
from tests.engine import small_experiments as small
from tests.engine.test_resume import StopAfter, finished


def checkpoint_files(folder):
    newest = folder / "checkpoint" / "round-000003.json"
    return newest, newest.with_suffix(".safetensors")


def restored(folder):
    """Restores the newest checkpoint; returns the rounds done, the tensors and the messages."""
    messages = []
    experiment = small.image_experiment()
    checkpoint.restore(experiment.state, folder / "checkpoint", messages.append)
    result = experiment.state.rounds_done, small.state_of(experiment), messages
    experiment.close()
    return result


@pytest.fixture(scope="module")
def two_checkpoints(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    finished(folder / "run").close()
    return folder / "run"


@pytest.mark.parametrize("part", [0, 1], ids=["json", "tensors"])
def test_any_damaged_byte_is_harmless_or_detected(two_checkpoints, part):
    """A changed byte either changes no content (white space), or the previous checkpoint is used."""
    file = checkpoint_files(two_checkpoints)[part]
    content, (_, expected, _) = file.read_bytes(), restored(two_checkpoints)
    state = small.image_experiment().state
    positions = sorted({*range(0, len(content), max(1, len(content) // 60)), *range(0, min(200, len(content)), 7)})
    try:
        for position in positions:
            for damaged in (bytes([content[position] ^ 1]), b"\xff", b"{", b""):
                file.write_bytes(content[:position] + damaged + content[position + 1 :])
                messages = []
                checkpoint.restore(state, two_checkpoints / "checkpoint", messages.append)
                if messages:
                    assert state.rounds_done == 2
                    assert file.stem in messages[0]
                else:
                    assert state.rounds_done == 3
                    assert all(torch.equal(t, expected[f"server {name}"]) for name, t in state.server.items())
    finally:
        file.write_bytes(content)


def paths_in(value, path=()):
    """Yields the paths of all values nested in JSON content."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, child in children:
        yield (*path, name)
        yield from paths_in(child, (*path, name))


@pytest.fixture(scope="module")
def stopped_midway(tmp_path_factory):
    """Folder of a run whose newest checkpoint holds reports and scores of an unfinished round."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    experiment = small.image_experiment(out=folder, checkpoint_seconds=0)
    experiment.listeners.append(StopAfter(experiment, 9))
    with pytest.raises(Interrupted):
        experiment.run()
    experiment.close()
    return folder


@pytest.mark.parametrize("change", ["removed", "unknown", "null", "text", "list"])
def test_any_changed_field_is_detected(stopped_midway, change):
    """Also with a valid digest, as if another version had written the file."""
    file = stopped_midway / "checkpoint" / "round-000001-3.json"
    text = file.read_text()
    state = small.image_experiment().state
    try:
        for path in paths_in(json.loads(text)):
            for with_digest in (True, False):
                meta = json.loads(text)
                holder = meta
                for step in path[:-1]:
                    holder = holder[step]
                if change == "removed":
                    del holder[path[-1]]
                elif change == "unknown" and isinstance(holder, dict):
                    holder["unknown"] = 1
                else:
                    holder[path[-1]] = {"null": None, "text": "x", "list": [[]]}.get(change)
                if with_digest:
                    meta["digest"] = checkpoint.json_digest(meta)
                file.write_text(json.dumps(meta))
                messages = []
                checkpoint.restore(state, file.parent, messages.append)  # raises CheckpointError at most
                if not with_digest:
                    assert messages or path == ("digest",) or meta == json.loads(text), path
    finally:
        file.write_text(text)


def test_an_unknown_field_is_reported_and_the_previous_checkpoint_used(stopped_midway):
    file = stopped_midway / "checkpoint" / "round-000001-3.json"
    text = file.read_text()
    meta = json.loads(text)
    next(iter(meta["reports"].values()))["temperature"] = 1.0
    meta["digest"] = checkpoint.json_digest(meta)
    file.write_text(json.dumps(meta))
    messages, state = [], small.image_experiment().state
    try:
        checkpoint.restore(state, file.parent, messages.append)
    finally:
        file.write_text(text)
    assert "round-000001-3.json: cannot be used (TypeError" in messages[0]
    assert "temperature" in messages[0]
    assert (state.rounds_done, state.unfinished.reports) == (1, {})


def test_other_files_in_the_folder_are_ignored(tmp_path):
    finished(tmp_path / "run").close()
    (tmp_path / "run" / "checkpoint" / "round-old.json").write_text("{}")
    assert restored(tmp_path / "run")[0] == 3
