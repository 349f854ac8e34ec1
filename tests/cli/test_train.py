import json
import re
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from pfl_fast import config
from pfl_fast.cli.setting_options import PLACES, SETTINGS
from tests.cli.conftest import SMALL


def settings_of(folder):
    return tomllib.loads(Path(folder, "config.toml").read_text())


def rounds_of(folder):
    return [json.loads(line) for line in Path(folder, "metrics.jsonl").read_text().splitlines()]


def test_banner_rounds_and_outcome(cli):
    page = cli("train", "fedcp", *SMALL).stdout
    for shown in (
        "FedCP: shared extractor", "synthetic (synthetic): 200 samples", "dirichlet, 3 clients with", "hash ",
        "mlp: a client trains", "2, 100% of the clients", "threads on cpu", "memory    about", "round 1/2", "round 2/2",
        "after aggregation", "after local training", "global model", "s/round", "samples/s", "MB uploaded",
        "results in runs/fedcp-synthetic-1",
        "pfl-fast train fedavg --dataset synthetic --model mlp --clients 3 --rounds 2 --image-size 8 --samples 200\n",
        "pfl-fast resume runs/fedcp-synthetic-1 --rounds 4",
    ):  # fmt: skip
        assert shown in page
    rounds = rounds_of("runs/fedcp-synthetic-1")
    assert f"after aggregation {rounds[1]['test_accuracy_after_agg']:.4f}" in page


def test_quiet_prints_one_line(cli):
    result = cli("train", "local", *SMALL, "--quiet", "-go", "x")
    (line,) = result.output.splitlines()
    summary = json.loads(Path("runs/local-synthetic-1/summary.json").read_text())
    assert line.startswith("local on synthetic (synthetic), 2 rounds:")
    assert f"after aggregation {summary['test_accuracy_after_agg']['last']:.4f}" in line
    assert line.endswith("runs/local-synthetic-1")


def test_metrics_can_be_repeated_and_separated_by_commas(cli):
    Path("mine.py").write_text("def first_class(logits, labels):\n    return (labels == 0).double().mean()\n")
    cli("train", "local", *SMALL, "--metric", "mine:first_class", "--metric", "macro_f1,balanced_accuracy")
    last = rounds_of("runs/local-synthetic-1")[-1]
    for name in ("first_class", "macro_f1", "balanced_accuracy"):
        assert last[f"test_{name}_after_agg"] is not None
    assert settings_of("runs/local-synthetic-1")["settings"]["metrics"][0] == "mine:first_class"


def test_stand_in_is_loud_before_and_after(cli, monkeypatch):
    from pfl_fast import assembly
    from pfl_fast.data.stand_in import stand_in

    monkeypatch.setattr(assembly, "load", lambda name, **_: stand_in(name, 16, 300, 0))
    page = cli("train", "fedavg", "--dataset", "mnist", "--clients", 3, "--rounds", 1).stdout
    assert page.count("SYNTHETIC STAND-IN for mnist") == 2
    assert "pfl-fast data get mnist" in page
    quiet = cli("train", "fedavg", "--dataset", "mnist", "--clients", 3, "--rounds", 1, "--quiet").stdout
    assert "mnist (synthetic stand-in)" in quiet


def test_every_setting_is_an_option_in_one_group(cli):
    page = cli("train", "--help").stdout
    for name in SETTINGS:
        assert f"--{name.replace('_', '-')} " in page
    assert len(PLACES) == len(set(PLACES))
    assert {f.name for f in fields(config.Settings)} <= set(PLACES)
    assert "-lbs" not in page.split("Examples:")[0]
    assert "[0.005]" in page
    assert "auto|sequential|threads|batched" in page


def test_values_of_the_command_line_win_over_the_file_and_the_file_over_the_paper(cli, tmp_path):
    file = tmp_path / "own.toml"
    file.write_text('method = "fedcp"\n[settings]\nlr = 0.5\nbatch_size = 7\n[options]\nlam = 2\n')
    cli("train", *SMALL, "--config", file, "--batch-size", 9, "--set", "cpn-depth=2", "--no-shuffle", "--out", "a")
    written = settings_of("a")
    assert written["method"] == "fedcp"
    assert written["settings"]["lr"] == 0.5
    assert written["settings"]["batch_size"] == 9
    assert written["settings"]["shuffle"] is False
    assert written["settings"]["drop_last"] is False
    assert (written["options"]["lam"], written["options"]["cpn_depth"]) == (2.0, 2)


def test_what_is_not_said_is_as_the_method_has_it(cli):
    cli("train", "fedcp", *SMALL, "--out", "a")
    from pfl_fast.methods import METHODS

    assert settings_of("a")["settings"]["lr"] == METHODS["fedcp"].defaults("mlp", "synthetic")["lr"]


@pytest.mark.parametrize("words", [["--preset", "official"], ["--set", "preset=official"]])
def test_preset(cli, words):
    cli("train", "fedcp", *SMALL, *words, "--out", "a")
    assert settings_of("a")["options"]["policy"] == "gumbel"
    assert settings_of("a")["settings"]["drop_last"] is True


def test_a_run_again_from_its_file_gives_the_same(cli):
    cli("train", "fedcp", *SMALL, "--set", "lam=3", "--out", "a")
    cli("train", "--config", "a/config.toml", "--out", "b")
    first, again = ([row["train_loss"] for row in rounds_of(folder)] for folder in ("a", "b"))
    assert first == again
    assert len(first) == 2


def test_folders_are_numbered_and_never_used_twice(cli):
    for number in (1, 2):
        cli("train", "local", *SMALL, "--quiet")
        assert Path(f"runs/local-synthetic-{number}/summary.json").exists()
    before = Path("runs/local-synthetic-1/metrics.jsonl").read_text()
    result = cli("train", "local", *SMALL, "--out", "runs/local-synthetic-1", exit_code=2)
    assert "pfl-fast resume runs/local-synthetic-1" in result.stderr
    assert Path("runs/local-synthetic-1/metrics.jsonl").read_text() == before


def test_run_that_fails_before_it_begins_leaves_no_folder(cli):
    cli("train", "local", *SMALL, "--model", "fasttext", exit_code=2)
    assert not any(Path("runs").iterdir())


def test_folder_that_cannot_be_made(cli):
    Path("runs").write_text("a file")
    assert "--out" in cli("train", "local", *SMALL, exit_code=2).stderr


def test_pfllib_command_line(cli):
    result = cli(
        "train", "-algo", "FedCP", "-data", "Synthetic", "-m", "DNN", "-nc", 3, "-gr", 1, "-lbs", 5, "-lr", 0.01,
        "-ls", 2, "-jr", 0.7, "-ld", "True", "-ldg", 0.5, "-eg", 1, "-dev", "cpu", "-did", 0, "-lam", 2, "-go", "test",
        "--samples", 200, "--image-size", 8, "--out", "a",
    )  # fmt: skip
    written = settings_of("a")
    expected = {
        "dataset": "synthetic", "model": "mlp", "clients": 3, "rounds": 1, "batch_size": 5, "lr": 0.01,
        "local_epochs": 2, "join_ratio": 0.7, "lr_decay": 0.5, "eval_every": 1, "device": "cpu",
    }  # fmt: skip
    assert {name: written["settings"][name] for name in expected} == expected
    assert written["method"] == "fedcp"
    assert written["options"]["lam"] == 2.0
    assert "note: -go is not used" in result.stderr


def test_pfllib_long_names_with_underscores(cli):
    cli("train", "Local", *SMALL[:-2], "--global_rounds", 1, "--local_epochs", 2, "--batch_size", 6, "--out", "a")
    written = settings_of("a")["settings"]
    assert (written["rounds"], written["local_epochs"], written["batch_size"]) == (1, 2, 6)


def test_all_mistakes_are_said_at_once(cli):
    result = cli(
        "train", "fedcp", "--lr", "fast", "--clients", 0, "--executor", "thread", "--set", "lamm=3", "--set", "x",
        "-mu", 1, "-gr", 3, "--rounds", 4, "-t", 2, exit_code=2,
    )  # fmt: skip
    for said in (
        "lr: must be a number, got 'fast'", "clients: must be at least 1", "did you mean 'threads'",
        "no option 'lamm'; did you mean 'lam'", "--set x: write KEY=VALUE", "-mu: FedCP has no option 'mu'",
        "rounds: said twice", "-t 2: one command is one run",
    ):  # fmt: skip
        assert said in result.stderr
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "say which method to train: apfl, ditto, fedafk"),
        (["fedcpp"], "did you mean 'fedcp'"),
        (["fedcp", "--lam", "1"], "write --set lam=VALUE"),
        (["fedcp", "--roundz", "1"], "--rounds"),
        (["fedcp", "--config", "none.toml"], "none.toml: there is no such file"),
        (["fedcp", "--preset", "offical"], "FedCP has paper, official"),
        (["fedcp", "--set", "report=x"], "no option 'report'"),
        (["fedcp", "--dataset", "synthetic", "--model", "cnm"], "did you mean 'cnn'"),
    ],
)
def test_each_mistake_has_a_message(cli, words, said):
    assert said in cli("train", *words, exit_code=2).stderr


def test_run_that_does_not_fit_is_refused_before_it_starts(cli, monkeypatch):
    from pfl_fast.engine import memory

    monkeypatch.setattr(memory, "available", lambda: 1000)
    result = cli("train", "fedcp", *SMALL, "--out", "a", exit_code=1)
    assert "--state disk" in result.stderr
    assert not Path("a/metrics.jsonl").exists()


def test_the_suggested_comparison_has_the_same_split(cli, tmp_path):
    """FedFomo takes a part of the samples for validation, which FedAvg would not do by itself."""
    folder = tmp_path / "run"
    page = cli("train", "fedfomo", *SMALL, "--out", folder).stdout
    assert re.search(r"pfl-fast train fedavg .*--validation 0\.2", page)
    page = cli("resume", folder, "--rounds", "3").stdout
    suggested = re.search(r"pfl-fast train fedavg .*", page)[0]
    assert suggested.count("--validation") == 1
    assert "[]" not in suggested
