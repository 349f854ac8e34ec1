import csv
import errno
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pfl_fast.cli.compare_progress import RunTable
from pfl_fast.comparison.plan import Request, make_plan
from pfl_fast.comparison.train import locked, train_all
from pfl_fast.config import read
from pfl_fast.data.partition import Partition
from pfl_fast.engine.state.checkpoint import json_digest
from pfl_fast.experiment import Experiment
from tests.cli.conftest import SMALL, read_rounds

FILES = ("results.txt", "results.md", "results.tex", "results.csv", "curves.png", "curves.pdf", "curves.svg")
TWO = ["compare", "--methods", "fedavg,fedper", *SMALL]


def table(folder):
    """Rows of results.csv by method."""
    return {row["method"]: row for row in csv.DictReader(io.StringIO(Path(folder, "results.csv").read_text()))}


def settings(folder):
    return read(Path(folder, "config.toml"))


def test_methods_seeds_and_grid(cli):
    page = cli(
        "compare", "--methods", "fedavg,fedcp", "--seeds", "0,1,2", "--grid", "lam=1,5", *SMALL, "--out", "a"
    ).stdout
    rows = table("a")
    assert list(rows) == ["FedAvg", "FedCP lam=1", "FedCP lam=5"]
    for label, row in rows.items():
        folder = label.lower().replace(" ", "-")
        for seed in range(3):
            records = read_rounds(f"a/runs/{folder}-seed{seed}")
            mean = sum(record["test_accuracy_after_agg"] for record in records) / 2  # two rounds, fewer than five
            assert float(row[f"seed {seed}"]) == pytest.approx(mean, rel=1e-15)
        values = [float(row[f"seed {seed}"]) for seed in range(3)]
        mean = sum(values) / 3
        deviation = (sum((value - mean) ** 2 for value in values) / 2) ** 0.5
        assert float(row["accuracy mean"]) == pytest.approx(mean)
        assert float(row["accuracy std"]) == pytest.approx(deviation)
        assert f"{100 * mean:.2f} ± {100 * deviation:.2f}" in page
    assert page.count("by samples, mean of the last 5 evaluated rounds; protocol default") == 2
    assert [settings(f"a/runs/fedcp-lam=5-seed{seed}")["lam"] for seed in range(3)] == [5, 5, 5]
    assert all(Path("a", name).stat().st_size > 100 for name in FILES)
    assert Path("a/curves.png").read_bytes()[:4] == b"\x89PNG"
    assert Path("a/curves.pdf").read_bytes()[:4] == b"%PDF"
    assert "<svg" in Path("a/curves.svg").read_text()


@pytest.mark.parametrize("arguments", [[], ["--partition-per-seed"]])
def test_methods_share_partition_and_initial_weights(cli, arguments):
    page = cli(*TWO, "--seeds", "3,4", "--eval-initial", *arguments, "--out", "a").stdout
    hashes = {
        (name, seed): Partition.load(f"a/runs/{name}-seed{seed}/partition").hash
        for name in ("fedavg", "fedper")
        for seed in (3, 4)
    }
    initial = {key: read_rounds(f"a/runs/{key[0]}-seed{key[1]}")[0]["test_loss_after_agg"] for key in hashes}
    for seed in (3, 4):
        assert hashes["fedavg", seed] == hashes["fedper", seed]
        assert initial["fedavg", seed] == initial["fedper", seed]
    assert initial["fedavg", 3] != initial["fedavg", 4]
    assert (hashes["fedavg", 3] == hashes["fedavg", 4]) is not bool(arguments)
    assert ("one for each seed" if arguments else "one for all seeds, hash " + hashes["fedavg", 3][:12]) in page
    cli("train", "fedavg", *SMALL, "--seed", 3, "--eval-initial", "--out", "b")
    assert [r["train_loss"] for r in read_rounds("b")] == [r["train_loss"] for r in read_rounds("a/runs/fedavg-seed3")]


def test_train_with_seeds_is_the_short_form(cli):
    cli("train", "fedcp", *SMALL, "--seeds", "0,1", "--set", "lam=2")
    cli("compare", "--methods", "fedcp", *SMALL, "--seeds", "0,1", "--set", "lam=2", "--out", "b", "--quiet")
    assert Path("runs/fedcp-synthetic-1/results.csv").read_text() == Path("b/results.csv").read_text()
    assert settings("b/runs/fedcp-seed1")["lam"] == 2


def test_repeating_the_command_trains_nothing(cli, monkeypatch):
    cli(*TWO, "--out", "a")
    before = {name: Path("a", name).read_bytes() for name in FILES}
    monkeypatch.setattr(Experiment, "rounds", None)
    cli(*TWO, "--executor", "sequential", "--out", "a")
    assert {name: Path("a", name).read_bytes() for name in FILES} == before


def start(*arguments):
    command = [sys.executable, "-u", "-m", "pfl_fast", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def wait_for_rounds(folder, count):
    while not Path(folder, "metrics.jsonl").exists() or len(read_rounds(folder)) < count:
        time.sleep(0.01)


def test_killed_and_repeated_equals_uninterrupted(cli):
    command = [*TWO[:-1], 30, "--checkpoint-seconds", 0, "--out"]
    with start(*command, "a") as process:
        wait_for_rounds("a/runs/fedper-seed0", 3)
        process.kill()
    assert not Path("a/results.csv").exists()
    first = Path("a/runs/fedavg-seed0/summary.json").stat().st_mtime_ns
    page = cli(*command, "a").stdout
    assert "1/2  FedAvg seed 0: " in page
    assert Path("a/runs/fedavg-seed0/summary.json").stat().st_mtime_ns == first
    cli(*command, "b", "--quiet")
    for name in FILES:
        assert Path("a", name).read_bytes() == Path("b", name).read_bytes(), name
    losses = [[record["train_loss"] for record in read_rounds(f"{out}/runs/fedper-seed0")] for out in "ab"]
    assert losses[0] == losses[1]


def test_ctrl_c_saves_and_prints_the_command_that_continues(cli):
    with start(*TWO[:-1], 40, "--out", "my runs") as process:
        wait_for_rounds("my runs/runs/fedavg-seed0", 2)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors
    done = len(read_rounds("my runs/runs/fedavg-seed0"))
    assert done < 40
    words = shlex.split(re.search(r"Continue with: pfl-fast (.*)", errors)[1])
    cli(*words)
    assert len(read_rounds("my runs/runs/fedavg-seed0")) == 40
    assert table("my runs")["FedPer"]["seed 0"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--lr", "0.3"], "values.lr: was not given, is 0.3"),
        (["--seeds", "0,1"], "seeds: was [0], is [0, 1]"),
        (["--grid", "local_epochs=1,2"], "grid.local_epochs: was not given, is ['1', '2']"),
        (["--rounds", "3"], "values.rounds: was 2, is 3"),
    ],
)
def test_changed_command_is_refused(cli, arguments, message):
    cli(*TWO, "--out", "a", "--quiet")
    before = Path("a/comparison.toml").read_text()
    assert message in cli(*TWO, *arguments, "--out", "a", exit_code=2).stderr
    assert Path("a/comparison.toml").read_text() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--methods", "fedcp,fedavg", "--grid", "lamm=1,2"], "no option 'lamm'; did you mean 'lam'?"),
        (["--methods", "fedcp,fedavg", "--set", "fedavg.lam=1"], "no option 'lam'"),
        (["--methods", "fedcp,fedavg", "--set", "ditto.lam=1"], "'ditto' is not one of the methods fedcp, fedavg"),
        (["--methods", "fedcp", "--grid", "beta=0.1,1"], "beta: all runs of a comparison share it"),
        (["--methods", "fedcp", "--grid", "lam=1,x"], "lam: must be a number, got 'x'"),
        (["--methods", "fedcp", "--grid", "lam"], "must be KEY=VALUE"),
        (["--methods", "fedcp", "--lam", "1"], "write --set lam=VALUE"),
        (["--methods", "fedcp", "--grid", "lam=1,2", "--set", "lam=1"], "lam: given as a grid and as a value"),
        (["--methods", "fedcp", "--set", "seed=1"], "given by --seeds"),
        (["--methods", "fedcp,fedcpp"], "did you mean 'fedcp'"),
        (["--methods", "fedcp,FedCP"], "each method once"),
        (["--methods", "fedcp", "--seeds", "1,1"], "must be different numbers"),
        (
            ["--methods", "fedcp", "--seeds", "0,1", "--partition-per-seed", "--partition-seed", "1"],
            "not depend on the seed",
        ),
        (["--methods", "fedcp", "--grid", "lam=1,2", "--set", "fedcp.lam=1"], "fedcp.lam: lam is in the grid already"),
        (["--methods", "fedcp", "--grid", "lam=1,1"], "lam: a value is given twice"),
        (["--methods", "fedcp", "--grid", "lam=1", "--grid", "lam=2"], "a name is given twice"),
        (["--methods", "fedavg", "--preset", "official"], "none of fedavg has 'official'"),
        (["--methods", "fedavg", "--protocol", "fedpick"], "needs a data set with domains"),
        (["--methods", "fedavg", "a"], "either --methods NAME,... or --runs RUN..."),
        (["--runs"], "either --methods NAME,... or --runs RUN..."),
        (["--methods", "fedios,fedpick", "--dataset", "digits5"], "momentum: the methods have different defaults, 0.9"),
    ],
)
def test_mistakes_are_refused_before_training(cli, arguments, message):
    assert message in cli("compare", *SMALL, *arguments, "--out", "a", exit_code=2).stderr
    assert not Path("a").exists()


def test_settings_that_one_method_asks_for_are_taken_by_all(cli):
    page = cli("compare", "--methods", "fedavg,fedfomo,fedcp", *SMALL, "--set", "fedcp.lr=0.2", "--out", "a").stdout
    assert "validation 0.2 (FedFomo)" in page
    assert "\nlr 0.05: FedAvg, FedFomo\nlr 0.2: FedCP\n" in Path("a/results.txt").read_text()
    assert [settings(f"a/runs/{name}-seed0")["validation"] for name in ("fedavg", "fedfomo", "fedcp")] == [0.2] * 3
    assert [settings(f"a/runs/{name}-seed0")["lr"] for name in ("fedavg", "fedfomo", "fedcp")] == [0.05, 0.05, 0.2]


def test_grid_over_a_setting_applies_to_every_method(cli):
    arguments = ["--methods", "fedavg,fedcp", "--grid", "lr=0.01,0.1", "--grid", "fedcp.lam=1,5", *SMALL]
    cli("compare", *arguments, "--out", "a", "--quiet")
    fedcp = [f"FedCP lr={lr} lam={lam}" for lr in ("0.01", "0.1") for lam in (1, 5)]
    assert list(table("a")) == ["FedAvg lr=0.01", "FedAvg lr=0.1", *fedcp]
    written = settings("a/runs/fedcp-lr=0.1-lam=5-seed0")
    assert (written["lr"], written["lam"]) == (0.1, 5)
    assert "lr 0" not in Path("a/results.txt").read_text()


def test_seeds_of_a_file(cli):
    cli("train", "local", *SMALL, "--seed", 7, "--out", "a", "--quiet")
    cli("train", "--config", "a/config.toml", "--seeds", "1,2", "--out", "b", "--quiet")
    assert [settings(f"b/runs/local-seed{seed}")["seed"] for seed in (1, 2)] == [1, 2]
    assert "--seed or --seeds" in cli("train", "local", "--seed", 1, "--seeds", "1,2", exit_code=2).stderr


def test_failed_run_does_not_lose_the_others(cli, monkeypatch):
    run = Experiment.run

    def failing(experiment):
        if experiment.method_name == "fedavg":
            raise RuntimeError("out of luck & memory")
        return run(experiment)

    monkeypatch.setattr(Experiment, "run", failing)
    result = cli(*TWO, "--out", "a", exit_code=1)
    assert "failed: FedAvg seed 0: out of luck & memory" in result.stdout
    assert "1 of 2 runs failed" in result.stderr
    assert "RuntimeError" in Path("a/runs/fedavg-seed0/error.txt").read_text()
    assert table("a")["FedAvg"]["failed"] == "seed 0"
    assert float(table("a")["FedPer"]["accuracy mean"]) > 0
    monkeypatch.setattr(Experiment, "run", run)
    cli(*TWO, "--out", "a")
    assert not table("a")["FedAvg"]["failed"]
    assert not Path("a/runs/fedavg-seed0/error.txt").exists()


def test_no_table_if_every_run_failed(cli, monkeypatch):
    monkeypatch.setattr(Experiment, "run", lambda _: 1 / 0)
    assert "FedPer seed 0: division by zero" in cli(*TWO, "--out", "a", exit_code=1).stdout
    assert not Path("a/results.txt").exists()


def test_finished_runs(cli):
    for method, lam in (("fedavg", None), ("fedcp", 1), ("fedcp", 5)):
        options = [] if lam is None else ["--set", f"lam={lam}"]
        cli("train", method, *SMALL, *options, "--out", f"{method}{lam}", "--quiet")
    page = cli("compare", "--runs", "fedavgNone", "fedcp1", "fedcp5", "--out", "t").stdout
    assert list(table("t")) == ["FedAvg", "FedCP lam=1", "FedCP lam=5"]
    assert (
        float(table("t")["FedAvg"]["accuracy mean"])
        == json.loads(Path("fedavgNone/summary.json").read_text())["protocol"]["accuracy"]
    )
    assert "seed 0" in page
    page = cli("compare", "--runs", "fedavgNone", "fedcp1", "--protocol", "fedcp", "--out", "t").stdout
    assert "by samples, best round; protocol fedcp" in page
    best = json.loads(Path("fedcp1/summary.json").read_text())["test_accuracy_after_agg"]["best"]
    assert float(table("t")["FedCP"]["accuracy mean"]) == best


def test_runs_of_comparisons_can_be_compared_again(cli):
    cli(*TWO, "--seeds", "0,1", "--out", "a", "--quiet")
    cli("compare", "--runs", "a", "--out", "b")
    assert Path("b/results.csv").read_text() == Path("a/results.csv").read_text()


def rewrite(folder, **changes):
    """Changes entries of summary.json, and its digest."""
    summary = json.loads(Path(folder, "summary.json").read_text()) | changes
    Path(folder, "summary.json").write_text(json.dumps({**summary, "digest": json_digest(summary)}))


def test_runs_that_differ_are_not_mixed(cli):
    train = ["train", "local", *SMALL, "--quiet", "--out"]
    cli(*train, "a")
    cli(*train, "b", "--beta", 1)
    cli(*train, "c", "--protocol", "fedios")
    cli(*train, "d")
    cli(*train, "e", "--seed", 1)
    cli("train", "fedavg", *SMALL, "--quiet", "--out", "f")
    rewrite("d", data="synthetic stand-in")
    for others, message in [
        (["b"], "they differ in partition at seed 0"),
        (["c"], "they differ in protocol"),
        (["d"], r"they differ in data:\n  synthetic \(synthetic\): a\n  synthetic \(synthetic stand-in\): d"),
        (["a"], "a and a have the same settings and seed"),
        (["e", "f"], "they differ in seeds and partitions"),
        (["nowhere"], "nowhere: holds no run"),
    ]:
        errors = cli("compare", "--runs", "a", *others, "--out", "t", exit_code=2).stderr
        assert re.search(message, errors), errors
        assert not Path("t").exists()
    for arguments in (["--rounds", 5], ["--set", "lam=1"], ["--grid", "lam=1"]):
        errors = cli("compare", "--runs", "a", *arguments, "--out", "t", exit_code=2).stderr
        assert "only --protocol and --out can be given" in errors
    rewrite("a", finished=False)
    assert "pfl-fast resume a continues it" in cli("compare", "--runs", "a", "--out", "t", exit_code=2).stderr


def test_a_changed_run_is_not_compared(cli):
    cli(*TWO, "--out", "a", "--quiet")
    before = {name: Path("a", name).read_bytes() for name in FILES}
    summary, settings = Path("a/runs/fedper-seed0/summary.json"), Path("a/runs/fedavg-seed0/config.toml")
    summary.write_text(summary.read_text().replace('"data": "synthetic"', '"data": "real"'))
    errors = cli("compare", "--runs", "a", "--out", "t", exit_code=2).stderr
    assert "summary.json is damaged; pfl-fast resume a/runs/fedper-seed0 continues it" in errors
    rows = Path("a/runs/fedavg-seed0/clients.csv")
    rows.write_text(rows.read_text()[:-20])
    cli(*TWO, "--out", "a", "--quiet")
    assert {name: Path("a", name).read_bytes() for name in FILES} == before
    settings.write_text(settings.read_text().replace("batch_size = 10", "batch_size = 18"))
    errors = cli("compare", "--runs", "a", "--out", "t", exit_code=2).stderr
    assert "was changed since the run wrote it:\n  batch_size: was 10, is 18" in errors


def test_one_process_at_a_time_writes_a_comparison(cli):
    with locked(Path("new/a"), print):
        assert "new/a: this process trains this comparison" in cli(*TWO, "--out", "new/a", exit_code=1).stderr
    assert not Path("new").exists()


def test_temporary_files_of_a_killed_comparison_are_removed(tmp_path):
    names = (".results.txt.tmp", ".partition-seed0.tmp/indices.npy", "mnist/.comparison.toml.tmp")
    left = [tmp_path / name for name in names]
    run = tmp_path / "runs/fedavg-seed0/.config.toml.tmp"  # another process may resume the run
    for file in (*left, run):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    with locked(tmp_path, print):
        assert not any(file.exists() for file in left)
    assert run.exists()


def test_a_disk_that_is_full_while_the_traceback_is_written_hides_no_message(cli, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Experiment, "run", full)
    monkeypatch.setattr("pfl_fast.comparison.train.traceback.format_exc", full)
    result = cli(*TWO, "--out", "a", exit_code=1)
    assert "2/2  FedPer seed 0: [Errno 28] No space left on device" in result.stdout
    assert "Error: 2 of 2 runs failed" in result.stderr


def test_latex_is_escaped_and_the_best_row_is_bold(cli):
    cli(
        "compare",
        "--methods",
        "fedavg,fedcp",
        "--grid",
        "cpn_depth=1,2",
        *SMALL,
        "--seeds",
        "0,1",
        "--out",
        "a",
        "--quiet",
    )
    latex = Path("a/results.tex").read_text()
    assert r"FedCP cpn\_depth=2 & " in latex
    assert "cpn_depth" not in "\n".join(line for line in latex.splitlines() if not line.startswith("%"))
    body = [line for line in latex.splitlines() if line.startswith("Fed")]
    assert all(re.search(r"\$\d+\.\d\d \\pm \d+\.\d\d\$", line) for line in body)
    means = {label.replace("_", r"\_"): f"{100 * float(row['accuracy mean']):.2f}" for label, row in table("a").items()}
    best = [mean == max(means.values(), key=float) for mean in means.values()]
    assert [r"{\boldmath" in line for line in body] == best
    assert ["**" in line for line in Path("a/results.md").read_text().splitlines() if line.startswith("| Fed")] == best


def test_domains_have_columns(cli):
    pytest.importorskip("sklearn")
    arguments = ["--methods", "fedavg", "--dataset", "digits5", "--samples", 300, "--rounds", 1, "--model", "mlp"]
    cli("compare", *arguments, "--image-size", 8, "--per-client", 20, "--protocol", "fedpick", "--out", "a", "--quiet")
    row = table("a")["FedAvg"]
    domains = [name.removesuffix(" mean") for name in row if name.endswith(" mean") and name != "accuracy mean"]
    assert len(domains) == 5
    mean = sum(float(row[f"{name} mean"]) for name in domains) / 5
    assert float(row["accuracy mean"]) == pytest.approx(mean)
    page = Path("a/results.txt").read_text()
    assert "stand-in" in page
    assert all(name in page for name in (*domains, "mean", "each client's best round"))


def test_settings_of_another_method_without_its_options(cli):
    cli("train", "fedcp", *SMALL, "--set", "lam=3", "--lr", 0.07, "--out", "a", "--quiet")
    result = cli("train", "fedavg", "--config", "a/config.toml", "--out", "b")
    assert re.search(r"note: a/config.toml: options of fedcp left out: .*\blam\b", result.stderr)
    assert settings("b")["lr"] == 0.07
    assert "lam" not in settings("b")
    cli("train", "ditto", "--config", "a/config.toml", "--out", "c", "--quiet")
    default = cli("train", "ditto", *SMALL, "--lr", 0.07, "--out", "d", "--quiet") and settings("d")["lam"]
    assert settings("c")["lam"] == default != 3
    cli("compare", "--methods", "ditto,fedcp", "--config", "a/config.toml", "--out", "e", "--quiet")
    assert settings("e/runs/fedcp-seed0")["lam"] == 3
    assert settings("e/runs/ditto-seed0")["lam"] == default
    cli("compare", "--methods", "fedcp", "--config", "a/config.toml", "--grid", "lam=1,2", "--out", "f", "--quiet")
    assert list(table("f")) == ["FedCP lam=1", "FedCP lam=2"]


def test_live_table(tmp_path):
    from rich.console import Console

    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    values = dict(zip([word[2:].replace("-", "_") for word in SMALL[::2]], SMALL[1::2], strict=True))
    plan = make_plan(Request(("fedavg", "local"), (0, 1), values), tmp_path, lambda _: None)
    with RunTable(plan, quiet=False, console=console) as shown:
        train_all(plan, shown.started, shown.ended)
    page = console.file.getvalue()
    for text in ("round 1/2", "round 2/2", "run 1 of 4", "run 4 of 4", "seed 1", "Local", "±", " left"):
        assert text in page
