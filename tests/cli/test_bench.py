"""``pfl-fast bench`` hands over to the benchmark of the checkout, if there is one."""

import sys
from types import SimpleNamespace

from pfl_fast.cli.bench import BENCHMARK


def test_options_are_handed_over(cli, monkeypatch, tmp_path):
    told = []
    monkeypatch.setitem(sys.modules, BENCHMARK, SimpleNamespace(main=told.append))
    cli(
        "bench",
        "--quick",
        "--case",
        "fedcp-mnist",
        "--case",
        "fedavg-mnist",
        "--repetitions",
        3,
        "--data-dir",
        tmp_path,
    )
    cli("bench", "--table")
    assert told == [
        ["--quick", "--cases", "fedcp-mnist", "fedavg-mnist", "--repetitions", "3", "--data-dir", str(tmp_path)],
        ["--table"],
    ]


def test_the_benchmark_understands_them(cli):
    result = cli("bench", "--case", "fedpc-mnist", exit_code=2)
    assert "invalid choice: 'fedpc-mnist'" in result.output


def test_without_a_checkout_it_says_what_to_do(cli, monkeypatch):
    monkeypatch.setitem(sys.modules, BENCHMARK, None)
    result = cli("bench", "--quick", exit_code=2)
    for words in ("checkout", BENCHMARK, "python -m bench.end_to_end"):
        assert words in result.output
