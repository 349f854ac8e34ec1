"""One process at a time trains a run."""

import errno
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pfl_fast.engine.results import run_lock
from pfl_fast.engine.results.run_lock import RunLock
from pfl_fast.engine.stopping import Interrupted
from pfl_fast.errors import PflFastError
from tests.engine import faulty_disk as faulty
from tests.engine.test_resume import StopAfter

pytestmark = pytest.mark.usefixtures("one_core")
HOLD = """
import sys
from pathlib import Path
from pfl_fast.engine.results.run_lock import RunLock
RunLock(Path(sys.argv[1])).acquire(print)
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """A process that holds the lock of ``tmp_path``."""
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(
        command, cwd=Path(__file__).parents[2], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "locked\n"
        yield process
        process.kill()


def test_a_second_process_is_refused_until_the_first_is_killed(tmp_path, holder):
    lock, messages = RunLock(tmp_path), []
    with pytest.raises(PflFastError, match=f"process {holder.pid} trains this run on this host"):
        lock.acquire(messages.append)
    assert messages == []
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    lock.acquire(messages.append)
    assert [m for m in messages if f"left behind by process {holder.pid}, which has ended" in m] == messages != []
    lock.release()
    assert not lock.file.exists()


def test_a_run_is_locked_while_it_is_open(tmp_path):
    first = faulty.begin(tmp_path / "run")
    rounds = first.rounds()
    next(rounds)
    for open_again in (faulty.resume, faulty.begin):
        with pytest.raises(PflFastError, match=r"this process trains this run(.|\n)*close the other Experiment"):
            open_again(tmp_path / "run")
    first.close()
    again = faulty.resume(tmp_path / "run")
    assert again.state.rounds_done == 1
    again.close()


@pytest.mark.parametrize("end", ["finished", "interrupted", "left", "failed", "refused"])
def test_a_run_that_has_ended_is_unlocked(tmp_path, end):
    experiment = faulty.begin(tmp_path / "run")
    assert json.loads((tmp_path / "run" / "run.lock").read_text())["pid"] == os.getpid()
    if end == "interrupted":
        experiment.listeners.append(StopAfter(experiment, 2))
        with pytest.raises(Interrupted):
            experiment.run()
    elif end == "left":
        rounds = experiment.rounds()
        next(rounds)
        rounds.close()
    elif end == "failed":
        experiment.listeners.append(None)  # has no methods
        with pytest.raises(AttributeError):
            experiment.run()
    else:
        experiment.run()
    if end == "refused":
        with pytest.raises(PflFastError):
            faulty.resume(tmp_path / "run", rounds=1)
    assert not (tmp_path / "run" / "run.lock").exists()
    faulty.resume(tmp_path / "run").close()


def test_a_run_in_a_read_only_folder_can_be_opened_but_not_trained(tmp_path, monkeypatch):
    faulty.train(faulty.begin(tmp_path / "run"))
    really = os.open

    def read_only(path, flags, *arguments, **options):
        if flags & os.O_CREAT:
            raise OSError(errno.EROFS, "Read-only file system")
        return really(path, flags, *arguments, **options)

    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(os, "open", read_only)
    opened = faulty.resume(tmp_path / "run")
    assert opened.state.rounds_done == 3
    with pytest.raises(PflFastError, match=r"run\.lock: cannot be written \(Read-only file system\)"):
        opened.run()


def test_a_lock_of_another_host_is_refused_with_the_file_to_delete(tmp_path):
    file = tmp_path / "run.lock"
    file.write_text(json.dumps({"pid": 7, "host": "elsewhere", "start": "1"}))
    with pytest.raises(PflFastError, match=r"process 7 on host elsewhere(.|\n)*delete .*run\.lock"):
        RunLock(tmp_path).acquire(print)
    assert "elsewhere" in file.read_text()
    file.unlink()
    RunLock(tmp_path).acquire(print)


@pytest.mark.parametrize("content", ["", "{", "[1]"])
def test_a_lock_cut_short_is_taken_over(tmp_path, content):
    (tmp_path / "run.lock").write_text(content)
    lock = RunLock(tmp_path)
    lock.acquire(print)
    assert lock.held
    lock.release()


def test_without_locks_of_the_file_system_process_and_start_time_decide(tmp_path, monkeypatch, holder):
    def unsupported(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(run_lock.fcntl, "flock", unsupported)
    lock, messages = RunLock(tmp_path), []
    with pytest.raises(PflFastError, match=f"process {holder.pid} trains this run"):
        lock.acquire(messages.append)
    owner = {"pid": holder.pid, "host": socket.gethostname(), "start": "1"}  # its number was used again
    lock.file.write_text(json.dumps(owner))
    lock.acquire(messages.append)
    assert "which has ended" in messages[0]


def test_an_experiment_does_not_continue_a_run_that_another_one_continued(tmp_path):
    old = faulty.begin(tmp_path / "run")
    old.listeners.append(StopAfter(old, 4))
    with pytest.raises(Interrupted):
        old.run()
    faulty.train(faulty.resume(tmp_path / "run"))
    expected = faulty.contents(tmp_path / "run")
    with pytest.raises(PflFastError, match="another process has continued this run"):
        old.run()
    assert faulty.contents(tmp_path / "run") == expected
