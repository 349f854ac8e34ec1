"""A write fails, or the process is killed, at any moment: the resumed run has all files of an uninterrupted one."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pfl_fast import atomic
from pfl_fast.engine.state import checkpoint
from pfl_fast.errors import PflFastError
from tests.engine import faulty_disk as faulty

pytestmark = pytest.mark.usefixtures("one_core")
ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.EROFS)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, one_core):  # noqa: ARG001
    """Files of a run without faults, and the number of its calls."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    with pytest.MonkeyPatch.context() as patch:
        disk = install(patch, 0, None)
        faulty.train(faulty.begin(folder))
    return faulty.contents(folder), disk.done


def install(patch, call, fail, for_good=False):
    disk = faulty.FaultyDisk(call, fail, for_good)
    patch.setattr(atomic, "os", disk)
    patch.setattr(checkpoint, "save_file", disk.save)
    return disk


def resumed(folder):
    """Files of a run after it has been resumed; after a failure to begin, of a new run."""
    begun = (folder / "config.toml").exists()
    faulty.train(faulty.resume(folder) if begun else faulty.begin(folder))
    return faulty.contents(folder)


@pytest.mark.parametrize(
    ("for_good", "every"),
    [
        (False, 4),
        (True, 13),
        pytest.param(False, 1, marks=pytest.mark.slow),
        pytest.param(True, 1, marks=pytest.mark.slow),
    ],
)
def test_every_failing_write_is_reported_and_loses_nothing(tmp_path, whole, for_good, every):
    """Every fourth or thirteenth call, or every one; it fails once, or all later ones fail, too."""
    expected, calls = whole
    assert calls > 100
    for call in range(1, calls + 1, every):
        code = ERRORS[(call + for_good) % len(ERRORS)]

        def fail(code=code):
            raise OSError(code, os.strerror(code))

        folder = tmp_path / f"run{call}"
        with pytest.MonkeyPatch.context() as patch:
            install(patch, call, fail, for_good)
            with pytest.raises(PflFastError, match=os.strerror(code)):
                faulty.train(faulty.begin(folder))
        assert resumed(folder) == expected, f"call {call}"


def test_a_process_killed_at_any_write_loses_nothing(tmp_path, whole):
    expected, calls = whole
    chosen = [str(call) for call in range(3, calls + 1, 11)]
    command = [sys.executable, "-m", "tests.engine.faulty_disk", str(tmp_path), *chosen]
    done = subprocess.run(
        command,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == chosen, done.stderr
    for call in chosen:
        assert resumed(tmp_path / call) == expected, f"call {call}"


def test_rows_that_could_not_be_written_are_in_the_checkpoint(tmp_path, whole, monkeypatch):
    """The result files fail, the checkpoints do not: no round is trained twice, none is lost."""
    experiment = faulty.begin(tmp_path / "run")
    really = atomic.append

    def append(target, data, **options):
        if target.name == "metrics.jsonl" and target.parent.name == "run" and experiment.state.rounds_done == 2:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        really(target, data, **options)

    monkeypatch.setattr(atomic, "append", append)
    with pytest.raises(PflFastError, match=r"metrics\.jsonl: cannot be written \(Too many open files\)"):
        faulty.train(experiment)
    monkeypatch.undo()
    assert (tmp_path / "run" / "metrics.jsonl").read_text().count("\n") == 1
    again = faulty.resume(tmp_path / "run")
    assert (again.state.rounds_done, len(again.records)) == (2, 2)
    faulty.train(again)
    assert faulty.contents(tmp_path / "run") == whole[0]


def test_a_run_goes_on_after_an_error_of_the_disk(tmp_path, whole, monkeypatch):
    """The same experiment continues: rows that could not be written come before those of the next round."""
    experiment = faulty.begin(tmp_path / "run")
    really, failed = atomic.append, []

    def append(target, data, **options):
        if target.parent.name == "run" and not failed:
            failed.append(target.name)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        really(target, data, **options)

    monkeypatch.setattr(atomic, "append", append)
    with pytest.raises(PflFastError):
        experiment.run()
    faulty.train(experiment)
    assert failed == ["metrics.jsonl"]
    assert faulty.contents(tmp_path / "run") == whole[0]


def test_a_folder_that_cannot_be_written_is_refused_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(PflFastError, match=r"cannot be written(.|\n)*choose another folder as out"):
        faulty.begin(tmp_path / "file" / "run")
