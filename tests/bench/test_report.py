"""What is written about measurements: tables, goals, the README's block, losses."""

import json
import subprocess
import sys
from copy import deepcopy
from pathlib import Path

import pytest

from bench import check, growth, operators, race
from bench import machine as here
from bench.end_to_end import __main__ as command
from bench.end_to_end import report, results
from bench.end_to_end.measure import spread
from bench.race import Race, Row


def both(yardstick, ours):
    return {"yardstick": yardstick, "ours": ours}


PARTS = {"data": 0.1, "local": 1.0, "aggregate": 0.25, "distribute": 0.25, "test_aggregated": 0.5}
CASE = {
    "data": "real",
    "clients": 20,
    "samples": 4000,
    "tests": 1300,
    "parameters": 582026,
    "executor": "threads",
    "rounds": 6,
    "seconds": both([4.0, 3.5, 4.5], [1.25, 1.0, 1.5]),
    "ratio": [3.2, 3.0, 3.4],
    "goal": 3.0,
    "cores": both(1.9, 2.0),
    "parts": both(PARTS, PARTS),
    "samples_per_second": both(1000.0, 3200.0),
    "gflops": both(40.0, 128.0),
    "accuracy": both(0.75, 0.76),
    "auc": both(0.9, 0.91),
    "peak_mib": both(300.0, 200.0),
}
RESULT = {
    "commit": "abc1234",
    "warning": None,
    "peaks": {"gemm_gflops": 160.0, "read_gbs": 30.0, "copy_gbs": 15.0},
    "cases": {"fedcp-mnist": CASE, "fedavg-mnist": {**CASE, "ratio": [1.5, 1.4, 1.6], "goal": 2.0}},
    "exchange": {
        "parameters": 5694600,
        "seconds": {**both([0.2] * 3, [0.02] * 3), "load": [0.01] * 3, "read": [0.016] * 3},
        "ratio": [10.0, 9.0, 11.0],
        "goal": 8.0,
        "gbs": {**both(4.0, 40.0), "read": 50.0},
    },
    "dispatches": {"fedcp-mnist": {"yardstick": 200.0, "sequential": 60.0, "threads": 60.0, "batched": 8.0}},
}
STORED = {"machine": {"cpu": "Some CPU", "cores": 2, "torch": "2.15", "kernels": "avx2"}, "full avx2": RESULT}


def test_goals_are_reached_or_missed():
    found = {name: report.verdict(reached, goal) for name, reached, goal in report.goals(RESULT)}
    assert found == {
        "fedcp-mnist": "reached (>= 3)",
        "fedavg-mnist": "MISSED (>= 2)",
        "aggregation and broadcast": "reached (>= 8)",
        "fedcp-mnist: operators of a batched step": "reached (>= 15)",
    }


def test_the_page_shares_out_the_machine():
    page = report.page("full avx2", STORED)
    assert "Some CPU, 2 cores, torch 2.15, commit abc1234, full avx2" in page
    assert "128.0 GFLOP/s (80 % of the matrix product)" in page
    assert "BUSY" not in page
    busy = deepcopy(STORED)
    busy["full avx2"]["warning"] = "the load is 3.0"
    assert "BUSY: the load is 3.0" in report.page("full avx2", busy)


def test_the_table_has_a_row_per_case():
    table = report.table(STORED)
    rows = [line for line in table.splitlines() if line.startswith("| fed")]
    assert [row.count("|") for row in rows] == [len(report.HEADER) + 1] * 2
    assert "| 4.00 | 1.25 | 3.20 (3.00 to 3.40) | reached (>= 3) | 0.750 / 0.760 |" in rows[0]
    assert "--quick" not in table
    assert "--quick" in report.table({"machine": STORED["machine"], "quick avx2": RESULT})


def test_there_is_a_table_for_each_instruction_set():
    workers = {"fedcp-mnist": {"ratio": [1.85, 1.8, 1.9]}}
    stored = {**STORED, "machine": {**STORED["machine"], "generation": "family 26"}}
    stored["full avx512"] = {**RESULT, "workers": workers, "cases": {"fedcp-mnist-few": {**CASE, "most": 200}}}
    table = report.table(stored)
    headings = [line.partition(", torch")[0] for line in table.splitlines() if line.startswith("Some CPU")]
    assert headings == [f"Some CPU (family 26), 2 cores, {name}" for name in ("AVX-512", "AVX2")]
    assert "| fedcp, mnist-few (real, at most 200 samples per client) |" in table
    assert "Two workers are 1.85 (1.80 to 1.90) times as fast as one in rounds of fedcp, reached (>= 1.8)." in table
    assert "AVX-512" in report.short_table(stored)


def test_each_instruction_set_is_measured_in_a_process_of_its_own(monkeypatch, tmp_path):
    monkeypatch.setattr(here, "cpuinfo", lambda _: f"avx2 fma f16c {AVX512}")
    calls = []

    def run(words, env, **_):
        calls.append((env["PFL_FAST_CPU_CAPABILITY"], env["ONEDNN_MAX_CPU_ISA"], words[3:]))
        return subprocess.CompletedProcess(words, 0)

    monkeypatch.setattr(command.subprocess, "run", run)
    command.main(["--brief", "--out", str(tmp_path / "file")])
    common = ["--brief", "--out", str(tmp_path / "file"), "--here"]
    assert calls == [
        ("avx512", "AVX512_CORE", common),
        ("avx2", "AVX2", [*common, "--cases", *command.SECONDARY]),
    ]


def test_the_short_table_has_time_and_accuracy():
    (row,) = [line for line in report.short_table(STORED).splitlines() if line.startswith("| fedcp")]
    assert row == "| fedcp, mnist (real) | 4.00 | 1.25 | 3.20 (3.00 to 3.40) | 0.750 / 0.760 |"


def test_only_the_block_is_replaced():
    text = "before\n<!-- bench-e2e -->\nold | table\n<!-- /bench-e2e -->\nafter\n"
    once = report.replace_block(text, "new\n")
    assert once == "before\n<!-- bench-e2e -->\nnew\n<!-- /bench-e2e -->\nafter\n"
    assert report.replace_block(once, "new\n") == once
    with pytest.raises(ValueError, match="must have a block"):
        report.replace_block("nothing", "new\n")


def test_committed_results_make_tables():
    for file in report.README.parent.glob("bench/end_to_end/*.json"):
        assert report.table(json.loads(file.read_text())).startswith(json.loads(file.read_text())["machine"]["cpu"])


def test_results_are_kept_with_six_digits(tmp_path):
    file = tmp_path / "machine.json"
    results.write(file, {"a": [1.23456789, 2], "b": {"c": "text", "d": None}})
    assert results.stored(file) == {"a": [1.23457, 2], "b": {"c": "text", "d": None}}


def test_a_table_needs_results(tmp_path):
    with pytest.raises(SystemExit, match=r"python -m bench\.end_to_end measures them"):
        command.main(["--table", "--out", str(tmp_path / "none.json")])


def test_spread_is_median_and_quantiles():
    assert spread([3.0]) == [3.0, 3.0, 3.0]
    assert spread([0.0, 10.0, 20.0, 30.0, 40.0, 50.0]) == [25.0, 10.0, 40.0]


def test_the_machine_has_a_file_of_its_own(monkeypatch):
    monkeypatch.setattr(here, "processor", lambda: "AMD EPYC(tm) 7B13 @ 2.2GHz")
    monkeypatch.setattr(here.os, "cpu_count", lambda: 8)
    assert here.slug() == "amd-epyc-tm-7b13-2-2ghz-8"


@pytest.mark.parametrize(("idle", "warning"), [(195, None), (150, "other processes used 25 % of the cores")])
def test_a_busy_machine_is_noticed(monkeypatch, idle, warning):
    times = iter([(1000, 9000), (1000 + idle, 9200)])
    monkeypatch.setattr(here, "cpu_times", lambda: next(times))
    monkeypatch.setattr(here, "sleep", lambda _: None)
    assert (here.busy() or "None").startswith(str(warning))


def test_times_of_the_cores_grow():
    (idle, total), (later_idle, later_total) = here.cpu_times(), here.cpu_times()
    assert 0 < idle <= later_idle
    assert total <= later_total
    assert idle < total


RECORDED = {"aggregate / loop": 20.0, "fedcp-mnist, quick": 4.0}


@pytest.mark.parametrize(
    ("measured", "lost"),
    [
        ({"aggregate / loop": 20.0, "fedcp-mnist, quick": 4.0}, []),
        ({"aggregate / loop": 15.0, "fedcp-mnist, quick": 3.0}, []),  # exactly a quarter
        ({"aggregate / loop": 14.9, "fedcp-mnist, quick": 8.0}, ["aggregate / loop"]),
        ({"aggregate / loop": 1.0, "fedcp-mnist, quick": 1.0, "new": 0.1}, list(RECORDED)),
        ({"aggregate / loop": 20.0}, ["fedcp-mnist, quick"]),  # no longer measured
    ],
)
def test_losses_beyond_a_quarter_are_named(measured, lost):
    assert [problem.split(":")[0] for problem in check.losses(RECORDED, measured)] == lost


@pytest.fixture
def checked(monkeypatch, tmp_path):
    """Runs the check with ratios that are given, not measured, and a results file of its own."""
    monkeypatch.setattr(check, "results_file", lambda: tmp_path / "machine.json")

    def run(ratio, *words):
        monkeypatch.setattr(check, "operator_ratios", lambda: {"aggregate / loop": ratio})
        monkeypatch.setattr(check, "round_ratios", lambda *_: {"fedcp-mnist, quick": 4.0})
        return check.main(words)

    return run


def test_the_check_compares_with_what_was_recorded(checked, capsys):
    assert checked(20.0) == 2
    assert "python -m bench.check --record" in capsys.readouterr().out
    assert checked(20.0, "--record") == 0
    assert checked(16.0) == 0
    assert "no ratio has lost" in capsys.readouterr().out
    assert checked(10.0) == 1
    assert "aggregate / loop: 10.00 times as fast, recorded 20.00: 50% lost" in capsys.readouterr().out


def test_a_record_says_that_the_machine_was_busy(checked, tmp_path, capsys, monkeypatch):
    for warning in (None, "the load is 3.0"):
        monkeypatch.setattr(here, "busy", lambda found=warning: found)
        assert checked(20.0, "--record") == 0
        assert ("BUSY: the load is 3.0" in capsys.readouterr().out) == bool(warning)
        assert json.loads((tmp_path / "machine.json").read_text())["check"]["warning"] == warning


def test_recording_keeps_other_results(checked, tmp_path):
    (tmp_path / "machine.json").write_text(json.dumps(STORED))
    assert checked(20.0, "--record") == 0
    after = json.loads((tmp_path / "machine.json").read_text())
    assert after["full avx2"] == STORED["full avx2"]
    assert after["check"]["ratios"] == {"aggregate / loop": 20.0, "fedcp-mnist, quick": 4.0}


def test_exponents_are_slopes_of_logarithms():
    assert growth.exponent([20, 200, 2000], [5.0, 5.0, 5.0]) == pytest.approx(0)
    assert growth.exponent([1, 2, 4, 8], [3.0, 12.0, 48.0, 192.0]) == pytest.approx(2)


def test_the_guard_names_races_that_there_are():
    root = Path(check.__file__).parents[1]
    words = [sys.executable, "-m", "pytest", "--collect-only", "-q", *check.race_tests()]
    done = subprocess.run(words, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert set(check.race_tests()) <= set(done.stdout.splitlines())


def race_of(kernels, native):
    return Race("mix", kernels, [Row("native", [native] * 3), Row("reference", [0.004] * 3)], None, {"reference": 3.0})


def test_a_race_has_rows_for_every_instruction_set(tmp_path):
    races = [race_of("avx2", 0.002), race_of("avx512", 0.001)]
    race.write(tmp_path / "races.json", races)
    assert race.read(tmp_path / "races.json") == races
    assert [found.ratios for found in races] == [{"reference": 2.0}, {"reference": 4.0}]
    _, header, *rows = race.tables(races)
    assert header.startswith("mix ")
    assert [row.split()[:2] for row in rows] == [
        ["native", "avx2"],
        ["reference", "avx2"],
        ["native", "avx512"],
        ["reference", "avx512"],
    ]
    assert [row.split("  ")[-1] for row in rows if "reference" in row] == ["MISSED (>= 3)", "reached (>= 3)"]


AVX512 = "avx512f avx512bw avx512dq avx512vl"


@pytest.mark.parametrize(
    ("flags", "measured"),
    [
        ("sse2", ["baseline"]),
        ("sse2 avx2 f16c", ["baseline"]),  # the kernels need FMA, too
        ("avx2 fma f16c avx512f", ["avx2"]),
        (f"avx2 fma f16c {AVX512}", ["avx2", "avx512"]),
    ],
)
def test_instruction_sets_of_a_processor(flags, measured):
    assert operators.available(flags.split()) == measured


def test_the_best_instruction_set_is_the_one_of_the_kernels():
    found = operators.available(here.cpuinfo("flags").split())
    process = subprocess.run(
        [sys.executable, "-c", "from bench.machine import heading, kernels; print(kernels()); print(heading())"],
        cwd=operators.ROOT,
        env=operators.environment(found[-1]),
        capture_output=True,
        text=True,
        check=True,
    )
    kernels, heading = process.stdout.splitlines()
    assert kernels == found[-1]
    assert here.processor() in heading


def test_an_unknown_operator_is_named(capsys):
    with pytest.raises(SystemExit):
        operators.main(["mixes"])
    assert "OPERATOR must be of aggregate, " in capsys.readouterr().err
