"""Times and data of tests, and the recorded and summarised results."""

import math
from time import sleep

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from pfl_fast.engine.client_results import LocalReport
from pfl_fast.engine.local.optimizer import StepSettings
from pfl_fast.engine.results.listeners import Listener
from pfl_fast.engine.results.metrics import METRICS
from pfl_fast.engine.results.records import RoundRecord, summarise_run
from pfl_fast.engine.results.scores import pending_score, read_scores
from pfl_fast.engine.sampling import Cohort, sample
from pfl_fast.engine.worker import TestSettings
from pfl_fast.methods import METHODS
from tests.engine import small_experiments as small

pytestmark = pytest.mark.usefixtures("one_core")


def by_hand(running, clients, split="test", keep=None):
    """Returns correct / samples over all clients, and the mean of the clients' accuracies."""
    correct, total, accuracies = 0, 0, []
    for client in clients:
        x, y = running.data.take(running.data.indices(split, client)[:keep])
        right = int((running.client(client)(x).argmax(1) == y).sum())
        correct, total = correct + right, total + len(y)
        accuracies.append(right / len(y))
    return correct / total, sum(accuracies) / len(accuracies)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("who", ["all", "selected"])
def test_after_aggregation_clients_are_tested_with_their_current_models(method, who):
    values = {"join_ratio": 0.4, "eval_clients": who, "tests": 11}
    running = small.experiment(method, **values)
    record = next(record for record in running.rounds() if record["round"] == 2)  # before a final round
    everyone = who == "all" or running.round.pools_data(2)
    clients = range(5) if everyone else sample(running.settings, 5, 2).training
    expected = by_hand(running, clients)
    assert record["test_accuracy_after_agg"] == pytest.approx(expected[0])
    assert record["test_accuracy_after_agg_by_client"] == pytest.approx(expected[1])
    running.close()


def test_after_local_training_clients_are_tested_with_their_trained_models():
    """Local exchanges nothing, so both tests use the same models."""
    with small.trained("local", tests=11) as running:
        for record in running.records:
            assert record["test_accuracy_after_local"] == record["test_accuracy_after_agg"]
            assert record["test_accuracy_after_local_by_client"] == record["test_accuracy_after_agg_by_client"]
    with small.trained("fedavg", tests=29, lr=2.0) as running:
        assert any(r["test_accuracy_after_local"] != r["test_accuracy_after_agg"] for r in running.records)


@pytest.mark.parametrize(
    ("when", "present"),
    [("both", {"after_agg", "after_local"}), ("after_agg", {"after_agg"}), ("after_local", {"after_local"})],
)
def test_eval_at(when, present):
    with small.trained("fedavg", eval_at=when) as running:
        for record in running.records:
            for name in ("after_agg", "after_local"):
                assert (record[f"test_accuracy_{name}"] is not None) == (name in present)


def test_the_times_of_tests_do_not_change_training():
    with small.trained("fedcp", policy="gumbel", gumbel_at_eval=True) as running:
        expected = small.state_of(running)
    for values in (
        {"eval_at": "after_agg"},
        {"eval_every": 5},
        {"eval_initial": True},
        {"eval_clients": "selected"},
        {"eval_global": False},
    ):
        with small.trained("fedcp", policy="gumbel", gumbel_at_eval=True, **values) as running:
            assert small.differences(small.state_of(running), expected, 0) == {}, values


@pytest.mark.parametrize(("every", "evaluated"), [(1, [1, 2, 3, 4, 5]), (2, [2, 4, 5]), (3, [3, 5]), (7, [5])])
def test_eval_every_and_always_at_the_end(every, evaluated):
    with small.trained("fedavg", rounds=5, eval_every=every) as running:
        assert [r["round"] for r in running.records] == [1, 2, 3, 4, 5]
        for name in ("test_accuracy_after_agg", "test_auc_after_agg", "test_loss_after_local"):
            assert [r["round"] for r in running.records if r.get(name) is not None] == evaluated
        assert all(r["train_loss"] is not None for r in running.records)


@pytest.mark.parametrize("method", METHODS)
def test_the_untrained_model_is_round_0(method):
    untrained = small.experiment(method, tests=11)
    expected = by_hand(untrained, range(5))[0]
    untrained.close()
    with small.trained(method, tests=11, eval_initial=True) as running:
        assert [r["round"] for r in running.records] == list(range(running.round.last_round + 1))
        assert running.records[0]["test_accuracy_after_agg"] == pytest.approx(expected)
        assert running.records[0]["test_accuracy_after_local"] is None
        assert running.summary()["test_accuracy_after_agg"]["best_round"] > 0


def test_drop_last_test_drops_incomplete_batches():
    values = {"tests": 7, "batch_size": 3, "eval_every": 2}
    with small.trained("local", drop_last_test=True, **values) as running:
        assert running.records[-1]["test_accuracy_after_agg"] == pytest.approx(by_hand(running, range(5), keep=6)[0])
    with small.trained("local", drop_last_test=True, **{**values, "tests": 2}) as running:
        assert running.records[-1]["test_accuracy_after_agg"] == pytest.approx(by_hand(running, range(5))[0])


def test_validation_accuracy_is_measured_on_validation_samples():
    with small.trained("fedper", tests=5, validation=7) as running:
        record = running.records[-1]
        assert record["test_accuracy_after_agg"] == pytest.approx(by_hand(running, range(5))[0])
        assert record["validation_accuracy_after_agg"] == pytest.approx(by_hand(running, range(5), "validation")[0])


def test_a_run_without_test_samples():
    with small.trained("fedavg", tests=0) as running:
        assert running.records[-1]["test_accuracy_after_agg"] is None
        assert running.records[-1]["test_accuracy_global"] is None
        assert running.records[-1]["train_loss"] is not None
        assert "test_accuracy_after_agg" not in running.summary()


def test_the_global_model_is_tested_on_all_test_samples():
    with small.trained("fedavg", tests=11) as running:
        x, y = running.data.take(running.data.union("test"))
        logits = running.client(0)(x).detach()
        (expected,) = read_scores([pending_score(logits, y, METRICS)])
        record = running.records[-1]
        assert record["test_accuracy_global"] == pytest.approx(expected.accuracy)
        assert record["test_loss_after_agg"] == pytest.approx(float(F.cross_entropy(logits, y)))


@pytest.mark.parametrize(
    ("method", "values", "present"),
    [
        ("fedavg", {}, True),
        ("fedcp", {}, True),
        ("fedcp", {"cpn": False, "gh": False}, False),
        ("fedper", {}, False),
        ("local", {}, False),
        ("fedavg", {"model": small.with_batch_norm(), "batch_norm": "personal"}, False),
        ("fedavg", {"model": small.with_batch_norm(), "batch_norm": "shared"}, True),
    ],
)
def test_which_methods_have_a_global_model(method, values, present):
    with small.trained(method, rounds=1, **values) as running:
        assert (running.records[0]["test_accuracy_global"] is not None) == present


@pytest.mark.parametrize(("decay", "expected"), [(1.0, [0.1, 0.1, 0.1]), (0.5, [0.1, 0.05, 0.025]), (0.0, [0.1, 0, 0])])
def test_learning_rate_by_round(decay, expected):
    running = small.experiment("fedavg", lr_decay=decay)
    step_settings = [running.round.step_settings(number) for number in (1, 2, 3)]
    assert all(isinstance(d, StepSettings) for d in step_settings)
    assert [d.lr for d in step_settings] == pytest.approx(expected)
    running.close()


def record(number, test=None, validation=None, **more):
    return {
        "round": number,
        "test_accuracy_after_agg": test,
        "validation_accuracy_after_agg": validation,
        "samples": 10,
        "seconds": 2.0,
        "samples_per_second": 5.0,
        "uploaded_values": 3,
        "downloaded_values": 4,
        **more,
    }


def test_summary_by_hand():
    tests = [0.9, 0.1, 0.5, None, 0.7, 0.7, 0.2, 0.3]
    validations = [1.0, 0.2, 0.8, None, 0.3, 0.3, 0.8, 0.1]
    rows = [record(i, t, v) for i, (t, v) in enumerate(zip(tests, validations, strict=True))]
    got = summarise_run(rows, {}, {"method": "x"})
    assert got["method"] == "x"
    assert got["rounds"] == 7
    assert got["test_accuracy_after_agg"] == {
        "best": 0.7,
        "best_round": 4,  # the first of equals; round 0 is the untrained model
        "last": 0.3,
        "last5": pytest.approx((0.5 + 0.7 + 0.7 + 0.2 + 0.3) / 5),
        "validation_selected": 0.5,
        "validation_round": 2,
    }
    assert (got["seconds_per_round"], got["uploaded_values"], got["downloaded_values"]) == (2.0, 24, 32)


def test_summary_without_rounds_and_without_evaluation():
    assert summarise_run([], {}, {})["rounds"] == 0
    got = summarise_run([record(1), record(2)], {}, {})
    assert got["rounds"] == 2
    assert "test_accuracy_after_agg" not in got


def test_without_validation_no_round_is_selected_by_it():
    assert "validation_selected" not in summarise_run([record(1, 0.5)], {}, {})["test_accuracy_after_agg"]


def traffic(running):
    """Returns the numbers of values uploaded and downloaded in the first round."""
    return running.records[0]["uploaded_values"], running.records[0]["downloaded_values"]


def size(module):
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize("join", [1.0, 0.4])
def test_traffic_of_a_round(join):
    """Per client and direction: FedAvg the model, FedPer its extractor, FedCP model and CPN, Local nothing."""
    model = small.plain()
    whole, extractor = size(model), size(model.extractor)
    policy = 5 * 10 + 10 + 2 * 10
    clients = math.floor(join * 5)
    for method, values in {"fedper": extractor, "fedcp": whole + policy, "local": 0}.items():
        with small.trained(method, join_ratio=join, rounds=1) as running:
            assert traffic(running) == (clients * values, clients * values), method
    with small.trained("fedavg", join_ratio=join, rounds=1) as running:
        assert traffic(running) == (clients * whole, 5 * whole), "all are tested with the newest model"


def test_traffic_when_more_clients_receive_or_fewer_upload():
    extractor = size(small.plain().extractor)
    with small.trained("fedper", join_ratio=0.4, broadcast_to_all=True, rounds=1) as running:
        assert traffic(running) == (2 * extractor, 5 * extractor)
    with small.trained("fedper", client_dropout=0.4, rounds=1) as running:
        assert traffic(running) == (3 * extractor, 5 * extractor)
    with small.trained("fedcp", join_ratio=0.4, extractor_to_all=True, rounds=1) as running:
        rest = size(small.plain().head) + 80
        assert running.records[0]["downloaded_values"] == 5 * extractor + 2 * rest


SECONDS = {"data", "local", "test_local", "aggregate", "distribute", "test_aggregated"}


def test_values_recorded_per_round():
    with small.trained("fedcp", local_epochs=2) as running:
        first = running.records[0]
        assert first["samples"] == 2 * sum(small.RAGGED)
        assert first["clients_trained"] == 5
        assert first["data"] == "synthetic"
        assert set(first["seconds_by_part"]) == SECONDS
        assert first["seconds"] == pytest.approx(sum(first["seconds_by_part"].values()))
        assert next(iter(first)) == "round"
        assert torch.tensor(first["train_loss"]).isfinite()


class Rows(Listener):
    """Stores the rows of all clients for every round."""

    def __init__(self):
        self.rounds = []

    def round_done(self, experiment, record):
        self.rounds.append(record.clients)


def test_the_summary_holds_the_mean_of_each_clients_best_round():
    running, rows = small.experiment("local", rounds=4, lr=0.5), Rows()
    running.listeners.append(rows)
    summary = running.run()
    for name in ("test_accuracy_after_agg", "test_accuracy_after_local"):
        best = [max(clients[c][name] for clients in rows.rounds) for c in range(running.data.clients)]
        assert summary[name]["best_per_client"] == pytest.approx(sum(best) / len(best))
    assert {"train_loss", "test_loss_after_agg", "test_auc_after_local", "test_samples"} <= rows.rounds[0][0].keys()
    running.close()


@pytest.mark.parametrize(
    ("method", "derived"), [("fedavg", True), ("fedprox", True), ("per-fedavg", False), ("ditto", False)]
)
def test_the_global_accuracy_equals_the_accuracy_of_the_servers_model(method, derived):
    """Also if it is computed from the scores of clients that hold the server's model."""
    with small.trained(method, model=small.with_batch_norm(), batch_norm="shared", tests=5) as running:
        run = running.round
        assert run.clients_predict_as_server == derived
        tested = run.executor.workers[0].test_global(run.state.server, TestSettings(seed=0, round=2))
        assert running.records[-1]["test_accuracy_global"] == pytest.approx(tested.accuracy)


@pytest.mark.parametrize("method", ["fedavg", "fedcp"])
def test_the_servers_model_is_not_tested_without_eval_global(method):
    with small.trained(method, eval_global=False, tests=11) as running:
        assert all(record["test_accuracy_global"] is None for record in running.records)
        assert all(record["test_accuracy_after_agg"] is not None for record in running.records)


def slow_metric(*_):
    sleep(0.02)
    return 1.0


@pytest.mark.parametrize("executor", ["sequential", "threads"])
def test_tests_after_local_training_are_not_counted_as_training(executor):
    """Five clients together spend at least 0.1 s in the metric."""
    metrics = "tests.engine.test_evaluation:slow_metric"
    with small.trained("fedavg", executor=executor, workers=2, metrics=metrics, rounds=3) as running:
        for record in running.records[1:]:  # the first round warms up
            seconds = record["seconds_by_part"]
            workers = len(running.round.executor.workers)
            assert seconds["test_local"] >= 0.1 / workers
            training = record["seconds_by_part"]["data"] + seconds["local"]
            assert record["samples_per_second"] == pytest.approx(record["samples"] / training)
            assert record["seconds"] == pytest.approx(sum(seconds.values()))


def test_seconds_of_workers_never_exceed_those_of_the_round():
    report = LocalReport(0, samples=4, steps=1, data_seconds=5.0, test_seconds=7.0)
    round_record = RoundRecord(2, evaluated=True, cohort=Cohort([0], [0], [0]), skipped=[])
    round_record.add_local_results({0: report}, {})
    values = round_record.finish({"local": 2.0, "aggregate": 1.0}, 1).values
    assert values["seconds_by_part"] == {"data": 0.0, "local": 0.0, "test_local": 2.0, "aggregate": 1.0}
    assert (values["seconds"], values["samples_per_second"]) == (3.0, None)
    values |= {"uploaded_values": 0, "downloaded_values": 0}
    assert summarise_run([values], {}, {})["samples_per_second"] == 0


def test_requested_metrics_are_recorded_for_every_split_and_time():
    names = ("macro_f1", "per_class_accuracy")
    with small.trained("fedper", tests=5, validation=4, metrics=names, rounds=1) as running:
        record = running.records[0]
        for split in ("test", "validation"):
            for when in ("after_agg", "after_local"):
                assert 0 <= record[f"{split}_macro_f1_{when}"] <= 1
                assert len(record[f"{split}_per_class_accuracy_{when}"]) == small.CLASSES
        assert "test_balanced_accuracy_after_agg" not in record
