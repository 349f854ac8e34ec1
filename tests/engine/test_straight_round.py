"""A round runs in one direction: the work of clients never calls back into the round."""

import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from pfl_fast.cli import main
from pfl_fast.engine import client_work, round

ROUND, CLIENT_WORK = round.__file__, client_work.__file__


@contextmanager
def profiled(on_call):
    """Calls ``on_call(frame)`` for every Python function that any thread enters."""

    def profile(frame, event, _argument):
        if event == "call":
            on_call(frame)

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


@pytest.mark.parametrize("executor", ["threads", "batched"])
def test_no_frame_of_the_round_is_below_a_frame_of_client_work(executor, tmp_path):
    seen, wrong = set(), set()

    def check(frame):
        file = frame.f_code.co_filename
        if file not in (ROUND, CLIENT_WORK):
            return
        seen.add((Path(file).name, frame.f_code.co_name))
        caller = frame.f_back
        while file == ROUND and caller is not None:
            if caller.f_code.co_filename == CLIENT_WORK:
                wrong.add((frame.f_code.co_name, caller.f_code.co_name))
            caller = caller.f_back

    arguments = ["train", "fedcp", "--dataset", "digits", "--rounds", "1", "--clients", "3", "--per-client", "20"]
    with profiled(check):
        result = CliRunner().invoke(
            main,
            [*arguments, "--executor", executor, "--out", str(tmp_path / "run"), "--quiet"],
            catch_exceptions=False,
        )
    assert result.exit_code == 0, result.output
    assert {("round.py", "run"), ("round.py", "test_clients"), ("client_work.py", "__call__")} <= seen
    assert wrong == set()
