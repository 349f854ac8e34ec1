"""Temporary folders end with their process, or with the next one."""

import os
import signal
import tempfile

import pytest

from pfl_fast.scratch import remove_unfinished, scratch_folder
from tests.engine import small_experiments as small


def killed_with_a_folder(parent):
    """Makes a temporary folder in a process that is killed; returns the folder."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        with scratch_folder(parent) as folder:
            (folder / "data").write_text("x")
            os.write(writer, str(folder).encode())
            os.kill(os.getpid(), signal.SIGKILL)
    os.close(writer)
    name = os.read(reader, 4096).decode()
    os.close(reader)
    os.waitpid(pid, 0)
    return parent / name


def test_a_folder_is_removed_at_the_end(tmp_path):
    with scratch_folder(tmp_path) as folder:
        assert folder.parent == tmp_path
        (folder / "deep").mkdir()
    assert not list(tmp_path.iterdir())
    with pytest.raises(KeyError), scratch_folder(tmp_path):
        raise KeyError
    assert not list(tmp_path.iterdir())


def test_folders_of_killed_processes_are_removed_and_no_others(tmp_path):
    (tmp_path / "pfl-fast-mine").mkdir()  # no lock: not ours
    left = killed_with_a_folder(tmp_path)
    with scratch_folder(tmp_path) as first:
        assert not left.exists()
        with scratch_folder(tmp_path) as second:
            assert first.exists()
            assert second != first
    assert [path.name for path in tmp_path.iterdir()] == ["pfl-fast-mine"]


def test_the_folder_of_temporary_files_is_the_default(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with scratch_folder() as folder:
        assert folder.parent == tmp_path


def test_a_resumed_run_removes_what_a_killed_one_left(tmp_path):
    folder = tmp_path / "run"
    small.image_experiment(out=folder, checkpoint_seconds=0).run()
    for name in (".metrics.jsonl.tmp", "checkpoint/.tmpAbC123", "partition/.indices.npy.tmp"):
        (folder / name).write_text("half")
    (folder / ".folder.tmp").mkdir()
    left = killed_with_a_folder(folder)
    before = {path.name for path in folder.rglob("*")} - {left.name, "lock", "data"}
    small.resume_image_experiment(folder).run()
    after = {path.name for path in folder.rglob("*")}
    assert after == before - {".metrics.jsonl.tmp", ".tmpAbC123", ".indices.npy.tmp", ".folder.tmp"}


def test_other_hidden_files_stay(tmp_path):
    (tmp_path / ".notes").write_text("mine")
    remove_unfinished(tmp_path)
    assert (tmp_path / ".notes").exists()
