"""A continued round has the results of an uninterrupted one: every client trains exactly once."""

import threading

import pytest

from pfl_fast.engine import executors
from pfl_fast.engine.client_results import LocalReport
from pfl_fast.engine.client_work import ClientWork, NotFinite
from pfl_fast.engine.stopping import Interrupted, StopFlag
from pfl_fast.engine.worker import Worker
from tests.engine import small_experiments as small

pytestmark = pytest.mark.usefixtures("one_core")

EXECUTORS = {
    "sequential": {"executor": "sequential"},
    "threads": {"executor": "threads", "workers": 2},
    "batched": {"executor": "batched", "stack": 2},
    "two devices": {"executor": "batched", "device": "cpu,cpu", "stack": 1},
}
# A client that trained twice would differ in its head, its momentum and its context.
VALUES = {"momentum": 0.9, "keep_momentum": True, "rounds": 1, "join_ratio": 0.8}


@pytest.fixture(scope="module")
def expected():
    with small.trained("fedcp", **VALUES) as running:
        return small.state_of(running), small.untimed_records(running)


def finish(running, expected):
    """Continues the run and compares its results."""
    running.run()
    assert small.differences(small.state_of(running), expected[0], 1e-9) == {}
    small.assert_same_records(small.untimed_records(running), expected[1], 1e-9)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("asked", [1, 2, 5, 7])
def test_stopped_between_steps(executor, asked, expected, monkeypatch):
    class Countdown(StopFlag):
        left = asked

        def is_set(self):
            self.left -= 1
            if self.left == 0:
                self.set()
            return super().is_set()

    monkeypatch.setattr(executors, "StopFlag", Countdown)
    running = small.experiment("fedcp", **VALUES, **EXECUTORS[executor])
    with pytest.raises(Interrupted):
        running.run()
    assert running.round.state.rounds_done == 0
    finish(running, expected)
    running.close()


def test_stopped_while_another_client_is_tested(expected, monkeypatch):
    """A client that has trained is stored and marked as trained, though the run is stopped during its test."""
    running = small.experiment("fedcp", **VALUES, **EXECUTORS["threads"])
    stop, ended = running.round.executor.stop, threading.Event()
    test, on_idle = Worker.test, executors.Executor.on_idle_worker

    def slow_test(*arguments):
        if not stop.is_set():
            stop.set()
            assert ended.wait(10), "the other worker did not notice the stop"
        return test(*arguments)

    def watched(self, work, unit):
        try:
            return on_idle(self, work, unit)
        except Interrupted:
            ended.set()
            raise

    monkeypatch.setattr(Worker, "test", slow_test)
    monkeypatch.setattr(executors.Executor, "on_idle_worker", watched)
    with pytest.raises(Interrupted):
        running.run()
    monkeypatch.undo()
    finish(running, expected)
    running.close()


@pytest.mark.parametrize("executor", EXECUTORS)
def test_an_error_of_one_client_keeps_the_results_of_the_others(executor, expected, monkeypatch):
    running = small.experiment("fedcp", **VALUES, **EXECUTORS[executor])
    upload = ClientWork._upload

    def one_fails(self, runner, unit, *arguments):
        if 3 in unit:
            raise NotFinite(1, LocalReport(3))
        upload(self, runner, unit, *arguments)

    monkeypatch.setattr(ClientWork, "_upload", one_fails)
    with pytest.raises(NotFinite):
        running.run()
    monkeypatch.undo()
    finish(running, expected)
    running.close()
