import csv
import io
import json
import re
import shlex
import signal
from pathlib import Path

import pytest

from pfl_fast.experiment import Experiment
from tests.cli.conftest import read_rounds
from tests.cli.test_compare import settings, start, wait_for_rounds

FILES = ("results.txt", "results.md", "results.tex", "results.csv", "results.json")
OWN = """
title = "two columns"
protocol = "fedcp"
seeds = [0, 1]
subject = "fedper"
notes = ["a note"]
numbers = '''
fedavg    90.0±1.0  50
fedper    95.0±0.5  -
two-heads 60        x
'''

[settings]
model = "mlp"
rounds = 2
lr = 0.05
clients = 4

[columns.digits]
dataset = "digits"

[columns.generated]
dataset = "synthetic"
samples = 300
image_size = 8

[rows.two-heads]
label = "two heads"
method = "fedcp"
protocol = "after_agg,clients,last"
lam = 0.5
"""


@pytest.fixture
def recipe(tmp_path):
    tmp_path.joinpath("paper").mkdir()
    file = tmp_path / "paper" / "table.toml"
    file.write_text(OWN)
    return str(file)


def cells(folder):
    return {
        (cell["column"], cell["row"]): cell for cell in json.loads(Path(folder, "results.json").read_text())["cells"]
    }


def test_numbers_of_the_paper_beside_ours(cli, recipe):
    page = cli("reproduce", recipe, "--out", "a").stdout
    assert all(Path("a", name).stat().st_size > 100 for name in FILES)
    found = cells("a")
    assert set(found) == {
        ("digits", "fedavg"), ("digits", "fedper"), ("digits", "two-heads"),
        ("generated", "fedavg"), ("generated", "fedper"),
    }  # fmt: skip
    fedper = found["digits", "fedper"]
    best = [
        max(r["test_accuracy_after_agg"] for r in read_rounds(f"a/digits/runs/fedper-seed{seed}")) for seed in (0, 1)
    ]
    mean, deviation = 50 * sum(best), 100 * abs(best[0] - best[1]) / 2**0.5
    assert fedper["ours"] == {"mean": pytest.approx(mean), "deviation": pytest.approx(deviation)}
    assert fedper["difference"] == pytest.approx(mean - 95)
    assert fedper["in_std"] == pytest.approx((mean - 95) / (deviation**2 + 0.25) ** 0.5)
    assert f"{mean:.2f} ± {deviation:.2f}" in page
    assert "95.00 ± 0.50" in page
    assert re.search(r"estimate   digits: 6 runs, \d+", page)
    assert "not in the source" in page
    assert "a note" in page
    clients = [r["test_accuracy_after_agg_by_client"] for r in read_rounds("a/digits/runs/two-heads-seed0")]
    other = [r["test_accuracy_after_agg_by_client"] for r in read_rounds("a/digits/runs/two-heads-seed1")]
    assert found["digits", "two-heads"]["ours"]["mean"] == pytest.approx(50 * (clients[-1] + other[-1]))
    assert settings("a/digits/runs/two-heads-seed0")["lam"] == 0.5
    table = list(csv.DictReader(io.StringIO(Path("a/results.csv").read_text())))
    assert [row["row"] for row in table] == [row for _, row in found]
    assert float(table[1]["ours"]) == fedper["ours"]["mean"]
    stored = json.loads(Path("a/results.json").read_text())
    assert stored["command"] == f"pfl-fast reproduce {recipe}"
    orders = {o["row"]: o for o in stored["orderings"]}
    assert orders["FedAvg"]["paper"] == 5
    assert orders["FedAvg"]["ours"] == pytest.approx(mean - found["digits", "fedavg"]["ours"]["mean"])


def test_generated_data_is_labelled_and_not_compared(cli, recipe):
    page = cli("reproduce", recipe, "--columns", "generated", "--seeds", "0", "--out", "a").stdout
    assert "generated, NOT the paper's data (synthetic), so nothing is compared" in page
    cell = cells("a")["generated", "fedavg"]
    assert cell["paper"]["mean"] == 50
    assert cell["ours"]["mean"] > 0
    assert cell["difference"] is cell["in_std"] is None
    assert json.loads(Path("a/results.json").read_text())["orderings"] == []
    for name in FILES[:3]:
        assert "NOT the paper" in Path("a", name).read_text()


def test_other_data_than_the_papers(cli, recipe):
    Path(recipe).write_text(OWN.replace('dataset = "digits"', 'dataset = "mnist"'))
    arguments = ["--columns", "digits", "--rows", "fedavg,fedper", "--seeds", "0", "--set", "dataset=digits"]
    page = cli("reproduce", recipe, *arguments, "--quiet", "--out", "a").stdout
    assert "digits: dataset mnist -> digits\n" in page
    assert "digits: digits (real): NOT the paper's data (mnist), so numbers are not compared\n" in page
    assert cells("a")["digits", "fedavg"]["difference"] is None
    ours = {row: cell["ours"]["mean"] for (_, row), cell in cells("a").items()}
    order = json.loads(Path("a/results.json").read_text())["orderings"]
    assert [(o["row"], o["ours"]) for o in order] == [("FedAvg", ours["fedper"] - ours["fedavg"])]


def test_data_that_is_missing_is_an_error_or_a_stand_in(cli, recipe):
    Path(recipe).write_text(OWN.replace('dataset = "digits"', 'dataset = "office-caltech10"\nimage_size = 8'))
    arguments = [
        "reproduce",
        recipe,
        "--columns",
        "digits",
        "--rows",
        "fedavg",
        "--seeds",
        "0",
        "--set",
        "per_client=5",
    ]
    assert "not found in" in cli(*arguments, "--real-data-only", "--out", "a", exit_code=1).stderr
    page = cli(*arguments, "--set", "samples=200", "--out", "b").stdout
    assert "office-caltech10 (synthetic stand-in, 200 of 2,533 samples): generated, NOT the paper's data" in page


def test_scaled_and_changed_runs_say_so(cli, recipe):
    text = OWN.replace("rounds = 2", "rounds = 40").replace("[0, 1]", "[0]")
    Path(recipe).write_text(text)
    arguments = ["--columns", "digits", "--rows", "fedavg", "--quiet"]
    page = cli("reproduce", recipe, *arguments, "--scale", "0.05").stdout
    per_client = round(0.05**0.5 * 1797 * 0.75 / 4)
    assert "SCALED by 0.05: fewer rounds and samples than in the paper\n" in page
    assert f"digits: rounds 40 -> 10, per_client None -> {per_client}\n" in page
    assert "ours (scaled)" in page
    written = settings("runs/paper-table-scale0.05/digits/runs/fedavg-seed0")
    assert (written["rounds"], len(read_rounds("runs/paper-table-scale0.05/digits/runs/fedavg-seed0"))) == (10, 10)
    partition = json.loads(Path("runs/paper-table-scale0.05/digits/partition-seed0/partition.json").read_text())
    assert max(partition["sizes"]["train"]) == per_client
    page = cli("reproduce", recipe, *arguments, "--set", "rounds=3", "--set", "lr=0.1", "--out", "b").stdout
    assert "digits: rounds 40 -> 3, lr 0.05 -> 0.1\n" in page
    assert "ours (changed)" in page
    assert "SCALED" not in page
    assert settings("b/digits/runs/fedavg-seed0")["lr"] == 0.1


def test_repeating_the_command_trains_nothing_and_rows_may_be_added(cli, recipe, monkeypatch):
    one = ["reproduce", recipe, "--columns", "digits", "--seeds", "0", "--out", "a"]
    cli(*one, "--rows", "fedavg", "--quiet")
    cli(*one, "--quiet")
    before = {name: Path("a", name).read_bytes() for name in FILES}
    monkeypatch.setattr(Experiment, "rounds", None)
    cli(*one, "--executor", "sequential")
    assert {name: Path("a", name).read_bytes() for name in FILES} == before
    assert len(cells("a")) == 3
    cli(*one, "--rows", "fedper", "--quiet")
    assert list(cells("a")) == [("digits", "fedper")]
    Path(recipe).write_text(OWN.replace("lam = 0.5", "lam = 0.7"))
    errors = cli(*one, exit_code=2).stderr
    assert "rows.two-heads: was fedcp" in errors
    assert "lam=0.7" in errors


def test_killed_and_repeated_equals_uninterrupted(cli, recipe):
    Path(recipe).write_text(OWN.replace("rounds = 2", "rounds = 20"))
    command = ["reproduce", recipe, "--columns", "digits", "--rows", "fedavg,fedper", "--seeds", "0"]
    command += ["--checkpoint-seconds", "0", "--out"]
    with start(*command, "a") as process:
        wait_for_rounds("a/digits/runs/fedper-seed0", 3)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert not Path("a/results.csv").exists()
    assert len(read_rounds("a/digits/runs/fedper-seed0")) < 20
    cli(*shlex.split(re.search(r"Continue with: pfl-fast (.*)", errors)[1]))
    cli(*command, "b", "--quiet")
    assert cells("a") == cells("b")
    losses = [[r["train_loss"] for r in read_rounds(f"{out}/digits/runs/fedper-seed0")] for out in "ab"]
    assert losses[0] == losses[1]


def test_dry_run_estimates_and_writes_nothing(cli, recipe, tmp_path):
    def files():  # the cache holds the decoded data set
        kept = {tmp_path / "data", tmp_path / "cache"}
        return sorted(file for file in tmp_path.rglob("*") if kept.isdisjoint((file, *file.parents)))

    before = files()
    page = cli("reproduce", recipe, "--rows", "fedavg,fedper", "--dry-run").stdout
    assert re.search(r"estimate   digits: 4 runs, \d+ .*\nestimate   generated: 4 runs, ", page)
    assert " in all, from one short round of each method" in page
    assert files() == before


def test_times_relative_to_fedavg(cli, recipe):
    Path(recipe).write_text(OWN.replace("title", 'quantity = "time"\ntitle', 1))
    page = cli("reproduce", recipe, "--columns", "digits", "--seeds", "0", "--quiet", "--out", "a").stdout
    assert "time of a round without tests, divided by that of FedAvg" in page
    found = cells("a")
    assert found["digits", "fedavg"]["ours"]["mean"] == found["digits", "fedavg"]["paper"]["mean"] == 1
    assert found["digits", "two-heads"]["paper"]["mean"] == pytest.approx(60 / 90)
    seconds = {}
    for row in ("fedavg", "fedper"):
        laps = [r["seconds_by_part"] for r in read_rounds(f"a/digits/runs/{row}-seed0")]
        seconds[row] = sum(sum(v for n, v in lap.items() if "test" not in n) for lap in laps)  # two rounds: the mean
    assert found["digits", "fedper"]["ours"]["mean"] == pytest.approx(seconds["fedper"] / seconds["fedavg"])


def test_failed_runs_are_named(cli, recipe):
    arguments = ["--columns", "digits", "--rows", "fedavg,fedper", "--seeds", "0", "--quiet", "--out", "a"]
    result = cli("reproduce", recipe, *arguments, "--set", "fedper.lr=1e30", exit_code=1)
    assert "failed: digits FedPer seed 0: " in result.stdout
    assert cells("a")["digits", "fedper"]["ours"] is None
    assert cells("a")["digits", "fedavg"]["ours"]["mean"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fedcp/tabel2"], "no recipe 'fedcp/tabel2'; did you mean 'fedcp/table2'?; pfl-fast recipes lists them"),
        (["fedcp/table2", "--rows", "fedcpp"], "rows: no row 'fedcpp'; did you mean 'fedcp'?"),
        (["fedcp/table2", "--columns", "tinny"], "columns: no column 'tinny'; did you mean 'tiny'?"),
        (["fedcp/table2", "--seeds", "a"], "seeds: must be integers"),
        (["fedcp/table2", "--scale", "2"], "--scale"),
        (["fedcp/table2", "--set", "lr"], "must be KEY=VALUE"),
        (["fedcp/table2", "--columns", "mnist", "--set", "lrr=1"], "no option 'lrr'"),
        (["fedcp/table2", "--columns", "mnist", "--set", "seed=1"], "given by --seeds"),
    ],
)
def test_mistakes_are_refused_before_training(cli, arguments, message):
    assert message in cli("reproduce", *arguments, "--out", "a", exit_code=2).stderr
    assert not Path("a").exists()


def test_list_of_recipes(cli):
    page = cli("recipes").stdout
    line = next(line for line in page.splitlines() if line.startswith("fedcp/table6 "))
    # 12 methods, 4 numbers of epochs, 5 seeds; 45,000 samples, 2000 rounds, 5 + 10 + 20 + 40 epochs
    assert line.split()[-5:] == ["12", "4", "cifar10", "240", f"{12 * 5 * 45_000 * 2000 * 75:.1e}"]


def test_page_of_a_recipe(cli):
    page = cli("recipes", "fedios/table7").stdout
    assert "wo-lre (fedios, alpha=0.5, lam=0, post_activation=relu): 75.43 ± 0.97" in page
    assert "after local training, by clients, mean of the last 5 evaluated rounds" in page
    page = cli("recipes", "fedpick/sweep-tau").stdout
    assert "MNIST_M not in the source" in page
    assert "did you mean 'fedios/table7'" in cli("recipes", "fedios/tabel7", exit_code=2).stderr


@pytest.mark.parametrize("command", ["recipes", "reproduce"])
def test_help(cli, command):
    page = cli(command, "--help").stdout
    assert "Examples:" in page
    assert "NAME" in page
