import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from pfl_fast.engine.results.records import RoundRecord
from pfl_fast.engine.sampling import Cohort
from pfl_fast.progress import MAX_LINES, Bar, Lines


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def experiment(rounds, done=0, eval_every=1, records=()):
    return SimpleNamespace(
        settings=SimpleNamespace(eval_every=eval_every),
        state=SimpleNamespace(rounds_done=done),
        last_round=rounds,
        records=list(records),
    )


def record(number, accuracy=0.5, evaluated=True, skipped=()):
    values = {"test_accuracy_after_agg": accuracy, "train_loss": 1.25, "samples_per_second": 1234.5}
    return RoundRecord(number, evaluated, Cohort([], [], []), list(skipped), values if evaluated else {})


def lines_of(rounds, seconds, **kwargs):
    clock, printed = Clock(), []
    view = Lines(clock, printed.append)
    view.started(experiment(rounds, **kwargs))
    for number in range(1, rounds + 1):
        clock.now += seconds
        evaluated = number % kwargs.get("eval_every", 1) == 0 or number == rounds
        view.round_done(None, record(number, evaluated=evaluated))
    return printed


@pytest.mark.parametrize("rounds", [1, 2, MAX_LINES])
def test_short_runs_have_a_line_per_round(rounds):
    printed = lines_of(rounds, seconds=0.01)
    assert len(printed) == rounds
    assert "after aggregation 0.5000" in printed[-1]
    assert "loss 1.2500" in printed[-1]
    assert "1,234 samples/s" in printed[-1]
    assert "left" not in printed[-1]


def test_only_evaluated_rounds_have_a_line():
    assert [line.split()[1] for line in lines_of(13, 0.01, eval_every=5)] == ["5/13", "10/13", "13/13"]


def test_long_runs_have_a_line_for_the_first_and_last_round_and_every_few_seconds():
    printed = lines_of(101, seconds=1.0)
    assert [line.split("/")[0].split()[-1] for line in printed] == [*map(str, range(1, 101, 5)), "101"]


def test_remaining_time_counts_rounds_since_the_run_was_resumed():
    clock, printed = Clock(), []
    view = Lines(clock, printed.append)
    view.started(experiment(10, done=6))
    clock.now += 20
    view.round_done(None, record(7))
    assert printed[0].endswith("1 min 0 s left")


def test_skipped_clients_are_printed_in_rounds_without_a_line():
    printed = []
    view = Lines(Clock(), printed.append)
    view.started(experiment(1000))
    view.round_done(None, record(1, evaluated=False, skipped=[3, 7]))
    assert printed == ["round 1: skipped clients 3, 7 (loss or parameters not finite)"]


@pytest.mark.parametrize("width", [80, 140])
def test_bar_shows_round_client_speed_accuracy_and_remaining_time(width):
    clock, out = Clock(), io.StringIO()
    view = Bar(Console(file=out, force_terminal=True, width=width), clock)
    view.started(experiment(4, done=1, records=[{"round": 1, "test_accuracy_after_agg": 0.9}]))
    clock.now += 7
    view.round_done(None, record(2, accuracy=0.7))
    view.client_done(3, 5, 7, None)
    view.bar.refresh()
    view.close()
    for text in ("3/4", "client 5/7", "1,234 samples/s", "acc 0.700 (best 0.900)", "5 s left"):
        assert text in out.getvalue()
    assert ("━" in out.getvalue()) == (width == 140)
