"""Protocols against values computed by hand."""

import csv
import json
from fractions import Fraction
from statistics import fmean

import pytest

from pfl_fast.engine.results.protocol import PROTOCOLS, Protocol, find_protocol, measure, read_client_rows, read_tests
from pfl_fast.errors import ConfigError
from tests.engine.small_experiments import trained

# Two clients of domain "a" with 4 and 8 test samples, one of "b" with 10: correct samples of rounds 1 to 6.
SAMPLES = {"0": ("a", 4), "1": ("a", 8), "2": ("b", 10)}
CORRECT = {"0": [0, 4, 2, 3, 1, 2], "1": [1, 2, 8, 4, 6, 5], "2": [9, 3, 1, 7, 5, 4]}
ROUNDS = 6


def rows(finetuned=None, local_bonus=0):
    """Rows of clients.csv; after local training every client has ``local_bonus`` more correct samples."""
    result = [row(0, client, 0, 0) for client in SAMPLES]  # the initial model never counts
    for number in range(1, ROUNDS + 1):
        for client in SAMPLES:
            correct = CORRECT[client][number - 1]
            result.append(row(number, client, correct, correct + local_bonus))
    for client, correct in (finetuned or {}).items():
        result.append({**row(ROUNDS + 1, client, 0, correct), "test_accuracy_after_agg": ""})
    return result


def row(number, client, after_agg, after_local):
    domain, samples = SAMPLES[client]
    validation = {1: 0.5, 4: 0.75, 5: 0.75}.get(number, 0.25)
    return {
        "round": str(number), "client": client, "domain": domain, "test_samples": str(samples),
        "test_accuracy_after_agg": repr(after_agg / samples), "test_accuracy_after_local": repr(after_local / samples),
        "validation_samples": "4", "validation_accuracy_after_agg": str(validation),
    }  # fmt: skip


def by_hand(reduction, number):
    correct = {client: found[number - 1] for client, found in CORRECT.items()}
    shares = {client: Fraction(count, SAMPLES[client][1]) for client, count in correct.items()}
    a, b = Fraction(correct["0"] + correct["1"], 12), shares["2"]
    reduced = {
        "samples": Fraction(sum(correct.values()), 22),
        "clients": sum(shares.values()) / 3,
        "domains": (a + b) / 2,
    }
    return float(reduced[reduction])


@pytest.mark.parametrize("reduction", ["samples", "clients", "domains"])
def test_selections_of_rounds(reduction):
    per_round = [by_hand(reduction, number) for number in range(1, ROUNDS + 1)]
    expected = {
        "best": max(per_round),
        "last": per_round[-1],
        "last5": fmean(per_round[1:]),
        "validation": per_round[3],
    }
    for selection, value in expected.items():
        found = measure(Protocol("", "after_agg", reduction, selection), rows(), ROUNDS)
        assert found.accuracy == pytest.approx(value, rel=1e-15)
        assert found.curve == [(n, pytest.approx(v, rel=1e-15)) for n, v in enumerate(per_round, 1)]
        at = {"best": per_round.index(max(per_round)) + 1, "last": 6, "last5": None, "validation": 4}[selection]
        assert found.round == at


@pytest.mark.parametrize(
    ("reduction", "expected"), [("samples", (4 + 8 + 9) / 22), ("clients", (1 + 1 + 0.9) / 3), ("domains", 0.95)]
)
def test_best_round_of_each_client(reduction, expected):
    found = measure(Protocol("", "after_agg", reduction, "best_per_client"), rows(), ROUNDS)
    assert found.accuracy == pytest.approx(expected, rel=1e-15)
    assert found.domains == {"a": 1.0, "b": 0.9}


def test_domains_of_the_selected_rounds():
    found = measure(Protocol("", "after_agg", "domains", "last"), rows(), ROUNDS)
    assert found.domains == {"a": 7 / 12, "b": 0.4}
    five = measure(Protocol("", "after_agg", "domains", "last5"), rows(), ROUNDS)
    assert five.domains["b"] == pytest.approx(fmean([0.3, 0.1, 0.7, 0.5, 0.4]))
    assert five.accuracy == pytest.approx(fmean(five.domains.values()))


def test_evaluation_points():
    agg, local = (
        measure(Protocol("", f"after_{p}", "samples", "last"), rows(local_bonus=1), ROUNDS) for p in ("agg", "local")
    )
    assert (agg.accuracy, local.accuracy) == (11 / 22, 14 / 22)
    assert measure(Protocol("", "after_finetune", "samples", "last"), rows(), ROUNDS) is None


@pytest.mark.parametrize("point", ["after_agg", "after_local", "after_finetune"])
@pytest.mark.parametrize("selection", ["best", "last5", "best_per_client"])
def test_runs_with_a_final_fine_tune_are_measured_after_it(point, selection):
    found = measure(Protocol("", point, "samples", selection), rows({"0": 1, "1": 2, "2": 3}), ROUNDS)
    assert found.accuracy == 6 / 22
    assert found.after_finetune
    assert [number for number, _ in found.curve] == [1, 2, 3, 4, 5, 6, 7]


def test_no_tests_no_accuracy():
    assert measure(find_protocol("default"), [], 3) is None


def test_named_protocols_are_those_of_the_papers():
    shown = {name: str(find_protocol(name)) for name in PROTOCOLS}
    assert shown["fedpick"] == "after aggregation, by domains, each client's best round"
    assert shown["fedcp"] == "after aggregation, by samples, best round"
    assert shown["fedafk"] == "after local training, by samples, best round"
    assert shown["fedios"] == "after local training, by clients, mean of the last 5 evaluated rounds"
    assert shown["partialfed"] == "after the final fine-tune, by domains, last evaluated round"
    assert str(find_protocol("after_local, clients,best")) == "after local training, by clients, best round"
    assert find_protocol("default", eval_at="after_local").point == "after_local"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fedcpp", "did you mean 'fedcp'"),
        ("after_agg,client,best", "'client' in 'after_agg,client,best' must be one of samples, clients, domains"),
        ("after_agg,clients", "POINT,REDUCTION,SELECTION"),
    ],
)
def test_unknown_protocols(name, message):
    with pytest.raises(ConfigError, match=message):
        find_protocol(name)


@pytest.mark.parametrize(
    ("protocol", "settings", "message"),
    [
        ("fedpick", {}, "needs a data set with domains"),
        ("after_local,samples,best", {"eval_at": "after_agg"}, 'needs eval_at="both" or eval_at="after_local"'),
        ("after_agg,samples,validation", {}, "needs validation samples"),
        ("after_finetune,samples,last", {}, "needs methods with a final fine-tune"),
        ("global,samples,last", {"eval_global": False}, "needs eval_global=True"),
        (
            "global,samples,last",
            {"eval_at": "after_local"},
            'needs eval_global=True, eval_at="both" or eval_at="after_agg"',
        ),
        ("global,clients,last", {}, "and reduction samples"),
    ],
)
def test_runs_without_the_tests_of_their_protocol_are_refused(protocol, settings, message):
    with pytest.raises(ConfigError, match=message), trained("fedavg", protocol=protocol, **settings):
        pass


def test_summary_has_the_accuracy_by_the_protocol(tmp_path):
    with trained("fedavg", rounds=3, protocol="after_local,clients,best", out=tmp_path):
        pass
    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    summary = json.loads((tmp_path / "summary.json").read_text())
    best = max(record["test_accuracy_after_local_by_client"] for record in records)
    assert summary["protocol"]["accuracy"] == pytest.approx(best, rel=1e-15)
    assert summary["protocol"]["name"] == "after_local,clients,best"
    assert summary["finished"] is True
    curve = measure(find_protocol("default"), read_client_rows(tmp_path / "clients.csv"), 3).curve
    assert curve == [(record["round"], record["test_accuracy_after_agg"]) for record in records]


@pytest.mark.parametrize("selection", ["best", "last", "last5"])
def test_the_servers_model(tmp_path, selection):
    with trained("fedper", rounds=2, out=tmp_path / "a"):
        pass
    protocol = find_protocol(f"global,samples,{selection}")
    assert str(protocol).startswith("server's model, by samples, ")
    assert measure(protocol, read_tests(tmp_path / "a", protocol), 2) is None  # heads are personal
    with trained("fedrod", rounds=7, protocol=protocol.name, out=tmp_path / "b"):
        pass
    records = [json.loads(line) for line in (tmp_path / "b" / "metrics.jsonl").read_text().splitlines()]
    series = [record["test_accuracy_global"] for record in records]
    assert len(set(series)) > 1
    expected = {"best": max(series), "last": series[-1], "last5": fmean(series[2:])}[selection]
    found = measure(protocol, read_tests(tmp_path / "b", protocol), 7)
    assert found.accuracy == expected
    assert found.curve == list(enumerate(series, 1))
    assert json.loads((tmp_path / "b" / "summary.json").read_text())["protocol"]["accuracy"] == expected


@pytest.mark.parametrize("eval_at", ["both", "after_agg", "after_local"])
def test_accuracies_after_the_final_fine_tune_are_in_clients_csv(tmp_path, eval_at):
    with trained("fedbabu", rounds=2, eval_at=eval_at, out=tmp_path) as experiment:
        clients = experiment.data.clients
    with (tmp_path / "clients.csv").open() as handle:
        last = [row for row in csv.DictReader(handle) if row["round"] == "3"]
    assert len(last) == clients
    assert all(row["test_accuracy_after_local"] for row in last)
    entry = json.loads((tmp_path / "summary.json").read_text())["protocol"]
    correct = sum(float(row["test_accuracy_after_local"]) * int(row["test_samples"]) for row in last)
    assert entry["accuracy"] == pytest.approx(correct / sum(int(row["test_samples"]) for row in last))
    assert entry["after_finetune"] is True
