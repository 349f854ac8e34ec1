import json
import re
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from pfl_fast import config
from pfl_fast.cli.setting_options import OPTION_ORDER, SETTINGS
from tests.cli.conftest import SMALL, read_rounds


def settings_of(folder):
    return tomllib.loads(Path(folder, "config.toml").read_text())


def test_banner_progress_and_summary(cli):
    page = cli("train", "fedcp", *SMALL).stdout
    for text in (
        "FedCP: shared extractor", "synthetic (synthetic): 200 samples", "dirichlet, 3 clients with", "hash ",
        "mlp: a client trains", "2, 100% of the clients per round", "threads on cpu", "memory    about",
        "round 1/2", "round 2/2",
        "after aggregation", "after local training", "global model", "s/round", "samples/s", "MB uploaded",
        "results in runs/fedcp-synthetic-1",
        "pfl-fast train fedavg --dataset synthetic --model mlp --clients 3 --rounds 2 --image-size 8 --samples 200\n",
        "pfl-fast resume runs/fedcp-synthetic-1 --rounds 4",
    ):  # fmt: skip
        assert text in page
    rounds = read_rounds("runs/fedcp-synthetic-1")
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
    last = read_rounds("runs/local-synthetic-1")[-1]
    for name in ("first_class", "macro_f1", "balanced_accuracy"):
        assert last[f"test_{name}_after_agg"] is not None
    assert settings_of("runs/local-synthetic-1")["settings"]["metrics"][0] == "mine:first_class"


def test_warning_about_stand_in_data_comes_before_and_after_training(cli, monkeypatch):
    from pfl_fast import assembly
    from pfl_fast.data.stand_in import stand_in

    monkeypatch.setattr(assembly, "load", lambda name, **_: stand_in(name, 16, 300, 0))
    page = cli("train", "fedavg", "--dataset", "mnist", "--clients", 3, "--rounds", 1).stdout
    assert page.count("SYNTHETIC STAND-IN for mnist") == 2
    assert "pfl-fast data get mnist" in page
    quiet = cli("train", "fedavg", "--dataset", "mnist", "--clients", 3, "--rounds", 1, "--quiet").stdout
    assert "mnist (synthetic stand-in)" in quiet


def test_every_setting_is_an_option_of_one_group(cli):
    page = cli("train", "--help").stdout
    for name in SETTINGS:
        assert f"--{name.replace('_', '-')} " in page
    assert len(OPTION_ORDER) == len(set(OPTION_ORDER))
    assert {f.name for f in fields(config.Settings)} <= set(OPTION_ORDER)
    assert "-lbs" not in page.split("Examples:")[0]
    assert "[0.005]" in page
    assert "auto|sequential|threads|batched" in page


def test_command_line_overrides_the_file_and_the_file_overrides_the_paper(cli, tmp_path):
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


def test_settings_not_given_have_the_defaults_of_the_method(cli):
    cli("train", "fedcp", *SMALL, "--out", "a")
    from pfl_fast.methods import METHODS

    assert settings_of("a")["settings"]["lr"] == METHODS["fedcp"].defaults("mlp", "synthetic")["lr"]


@pytest.mark.parametrize("arguments", [["--preset", "official"], ["--set", "preset=official"]])
def test_preset(cli, arguments):
    cli("train", "fedcp", *SMALL, *arguments, "--out", "a")
    assert settings_of("a")["options"]["policy"] == "gumbel"
    assert settings_of("a")["settings"]["drop_last"] is True


def test_repeating_a_run_from_its_config_gives_the_same_losses(cli):
    cli("train", "fedcp", *SMALL, "--set", "lam=3", "--out", "a")
    cli("train", "--config", "a/config.toml", "--out", "b")
    first, second = ([row["train_loss"] for row in read_rounds(folder)] for folder in ("a", "b"))
    assert first == second
    assert len(first) == 2


def test_folders_are_numbered_and_never_overwritten(cli):
    for number in (1, 2):
        cli("train", "local", *SMALL, "--quiet")
        assert Path(f"runs/local-synthetic-{number}/summary.json").exists()
    before = Path("runs/local-synthetic-1/metrics.jsonl").read_text()
    result = cli("train", "local", *SMALL, "--out", "runs/local-synthetic-1", exit_code=2)
    assert "pfl-fast resume runs/local-synthetic-1" in result.stderr
    assert Path("runs/local-synthetic-1/metrics.jsonl").read_text() == before


def test_run_that_cannot_start_leaves_no_folder(cli):
    cli("train", "local", *SMALL, "--model", "fasttext", exit_code=2)
    assert not any(Path("runs").iterdir())


def test_error_if_the_folder_cannot_be_created(cli):
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
    assert "note: -go is ignored" in result.stderr


def test_pfllib_long_names_with_underscores(cli):
    cli("train", "Local", *SMALL[:-2], "--global_rounds", 1, "--local_epochs", 2, "--batch_size", 6, "--out", "a")
    written = settings_of("a")["settings"]
    assert (written["rounds"], written["local_epochs"], written["batch_size"]) == (1, 2, 6)


def test_one_error_lists_all_mistakes(cli):
    result = cli(
        "train", "fedcp", "--lr", "fast", "--clients", 0, "--executor", "thread", "--set", "lamm=3", "--set", "x",
        "-mu", 1, "-gr", 3, "--rounds", 4, "-t", 2, exit_code=2,
    )  # fmt: skip
    for message in (
        "lr: must be a number, got 'fast'", "clients: must be at least 1", "did you mean 'threads'",
        "no option 'lamm'; did you mean 'lam'", "--set x: must be KEY=VALUE", "-mu: FedCP has no option 'mu'",
        "rounds: given twice", "-t 2: one command trains one run",
    ):  # fmt: skip
        assert message in result.stderr
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no method given; choose one of apfl, centralised, ditto, fedafk"),
        (["fedcpp"], "did you mean 'fedcp'"),
        (["fedcp", "--lam", "1"], "write --set lam=VALUE"),
        (["fedcp", "--roundz", "1"], "--rounds"),
        (["fedcp", "--config", "none.toml"], "none.toml: there is no such file"),
        (["fedcp", "--preset", "offical"], "FedCP has paper, official"),
        (["fedcp", "--set", "log=x"], "no option 'log'"),
        (["fedcp", "--dataset", "synthetic", "--model", "cnm"], "did you mean 'cnn'"),
    ],
)
def test_each_mistake_has_a_message(cli, arguments, message):
    assert message in cli("train", *arguments, exit_code=2).stderr


def test_run_that_does_not_fit_into_memory_is_refused(cli, monkeypatch):
    from pfl_fast.engine import memory

    monkeypatch.setattr(memory, "available", lambda: 1000)
    result = cli("train", "fedcp", *SMALL, "--out", "a", exit_code=1)
    assert "--state disk" in result.stderr
    assert not Path("a/metrics.jsonl").exists()


def test_suggested_comparison_has_the_same_partition(cli, tmp_path):
    """FedFomo holds out validation samples by default, FedAvg does not."""
    folder = tmp_path / "run"
    page = cli("train", "fedfomo", *SMALL, "--out", folder).stdout
    assert re.search(r"pfl-fast train fedavg .*--validation 0\.2", page)
    page = cli("resume", folder, "--rounds", "3").stdout
    suggested = re.search(r"pfl-fast train fedavg .*", page)[0]
    assert suggested.count("--validation") == 1
    assert "[]" not in suggested
