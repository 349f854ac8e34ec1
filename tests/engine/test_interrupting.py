"""A round that was stopped and goes on comes to the same end: no client trains twice, none is left out."""

import threading

import pytest

from pfl_fast.engine import executor as executor_module
from pfl_fast.engine.local.single import Interrupted
from pfl_fast.engine.server import NotFinite
from pfl_fast.engine.stopping import StopFlag
from tests.engine import toys

pytestmark = pytest.mark.usefixtures("one_core")

EXECUTORS = {
    "sequential": {"executor": "sequential"},
    "threads": {"executor": "threads", "workers": 2},
    "batched": {"executor": "batched", "stack": 2},
    "two devices": {"executor": "batched", "device": "cpu,cpu", "stack": 1},
}
# What would go wrong if a client trained again: its head, its momentum and its context are its own.
VALUES = {"momentum": 0.9, "keep_momentum": True, "rounds": 1, "join_ratio": 0.8}


@pytest.fixture(scope="module")
def expected():
    with toys.ran("fedcp", **VALUES) as running:
        return toys.state_of(running), toys.numbers_of(running)


def finish(running, expected):
    """Goes on as if nothing had happened."""
    running.server.executor.stop.clear()
    running.run()
    assert toys.differences(toys.state_of(running), expected[0], 1e-9) == {}
    toys.assert_same_records(toys.numbers_of(running), expected[1], 1e-9)


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

    monkeypatch.setattr(executor_module, "StopFlag", Countdown)
    running = toys.experiment("fedcp", **VALUES, **EXECUTORS[executor])
    with pytest.raises(Interrupted):
        running.run()
    assert running.server.rounds_done == 0
    finish(running, expected)
    running.close()


def test_stopped_while_another_client_is_tested(expected, monkeypatch):
    """The client under test has trained: what it became is kept, and so must be the word that it has."""
    running = toys.experiment("fedcp", **VALUES, **EXECUTORS["threads"])
    stop, ended = running.server.executor.stop, threading.Event()
    test, on_idle = executor_module.Worker.test, executor_module.Executor._on_idle

    def slow_test(*arguments):
        if not stop.is_set():
            stop.set()
            assert ended.wait(10), "the other worker did not notice the stop"
        return test(*arguments)

    def noted(self, work, unit):
        try:
            return on_idle(self, work, unit)
        except Interrupted:
            ended.set()
            raise

    monkeypatch.setattr(executor_module.Worker, "test", slow_test)
    monkeypatch.setattr(executor_module.Executor, "_on_idle", noted)
    with pytest.raises(Interrupted):
        running.run()
    monkeypatch.undo()
    finish(running, expected)
    running.close()


@pytest.mark.parametrize("executor", EXECUTORS)
def test_an_error_at_one_client_keeps_the_others(executor, expected, monkeypatch):
    running = toys.experiment("fedcp", **VALUES, **EXECUTORS[executor])
    server = running.server
    finish_client = server.finish

    def one_fails(worker, trained, *arguments):
        if trained.report.client == 3:
            raise NotFinite(1, trained.report)
        return finish_client(worker, trained, *arguments)

    monkeypatch.setattr(server, "finish", one_fails)
    with pytest.raises(NotFinite):
        running.run()
    monkeypatch.undo()
    finish(running, expected)
    running.close()
