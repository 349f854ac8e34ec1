"""A short campaign that is always the same, and proof that it sees what it looks for."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos import shim
from tests.chaos.command import Ended
from tests.chaos.folders import contents, differences

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(("faults", "of"), [(30, []), (4, ["--compare"])], ids=["runs", "comparisons"])
def test_faults_lose_nothing(faults, of):
    command = [sys.executable, "-m", "tests.chaos", "--faults", str(faults), "--seed", "tests", *of]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    pattern = rf"{faults} faults tried in \d+ s: (\d+) same to the bit, (\d+) refused clearly, 0 lost"
    counts = re.search(pattern, done.stdout)
    assert counts, done.stdout
    assert int(counts[1]) > faults // 2


@pytest.mark.parametrize(
    ("code", "output", "problem"),
    [
        (None, "", "hang"),
        (-signal.SIGBUS, "", "crash: SIGBUS"),
        (1, "Traceback (most recent call last):\n", "traceback"),
        (1, "", "exit code 1 without a message"),
        (1, "Error: the disk is full", ""),
        (-signal.SIGKILL, "", ""),
        (0, "", ""),
    ],
)
def test_ends_of_a_command_are_told_apart(code, output, problem):
    assert Ended(code, output).problem.startswith(problem)
    assert bool(Ended(code, output).problem) == bool(problem)


def test_only_times_and_old_checkpoints_may_differ(tmp_path):
    def write(name, accuracy, seconds, **files):
        folder = tmp_path / name
        (folder / "checkpoint").mkdir(parents=True)
        for file, text in files.items():
            (folder / file.replace("__", "/")).write_text(text)
        (folder / "metrics.jsonl").write_text(json.dumps({"accuracy": accuracy, "seconds": seconds}) + "\n")
        (folder / "checkpoint" / "round-000003.json").write_text(json.dumps({"rounds": 3, "digest": name}))
        return contents(folder)

    expected = write("expected", 0.5, 1.0, checkpoint__old="")
    assert differences(expected, write("same", 0.5, 2.0, checkpoint__old="")) == ""
    assert "metrics.jsonl differs: accuracy is 0.25" in differences(expected, write("a", 0.25, 1.0, checkpoint__old=""))
    assert "old is missing" in differences(expected, write("b", 0.5, 1.0))
    assert ".tmp should not exist" in differences(expected, write("c", 0.5, 1.0, checkpoint__old="", **{".tmp": ""}))


CHILD = """
import errno, os, sys
from pathlib import Path
from tests.chaos import shim
folder = Path(sys.argv[1])
fault = eval(sys.argv[2])
shim.fail_files(folder, **fault)
for name in "abc":
    try:
        (folder / name).write_bytes(b"12345")
        print(name)
    except OSError as error:
        print(name, errno.errorcode[error.errno])
print(shim.operations(fault.get("kinds", shim.ANY)))
"""


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ({}, ["a", "b", "c", "6"]),
        ({"kinds": shim.DATA, "at": 2, "error": errno.EIO}, ["a", "b EIO", "c", "3"]),
        ({"kinds": shim.DATA, "at": 2, "error": errno.EIO, "lasting": True}, ["a", "b EIO", "c EIO", "3"]),
        ({"kinds": shim.CREATE, "at": 2, "error": errno.EMFILE}, ["a", "b EMFILE", "c", "3"]),
        ({"budget": 7}, ["a", "b ENOSPC", "c ENOSPC"]),
        ({"at": 4, "kill": signal.SIGKILL}, ["a"]),
    ],
)
def test_the_shim_fails_the_operation_that_it_should(tmp_path, fault, expected):
    runs = tmp_path / "run"
    runs.mkdir()
    library = shim.compile_shim(tmp_path)
    done = subprocess.run(
        [sys.executable, "-u", "-c", CHILD, str(runs), repr({name: int(value) for name, value in fault.items()})],
        cwd=ROOT,
        env={**os.environ, "LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines()[: len(expected)] == expected, done.stderr
    assert done.returncode == (-signal.SIGKILL if "kill" in fault else 0)
    if "budget" in fault:
        assert [(runs / name).stat().st_size for name in "abc"] == [5, 2, 0]
