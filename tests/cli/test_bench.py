"""``pfl-fast bench`` runs the benchmark of the checkout."""

import sys
from types import SimpleNamespace

from pfl_fast.cli.bench import BENCHMARK


def test_options_are_passed_to_the_benchmark(cli, monkeypatch, tmp_path):
    calls = []
    monkeypatch.setitem(sys.modules, BENCHMARK, SimpleNamespace(main=calls.append))
    cases = ["--case", "fedcp-mnist", "--case", "fedavg-mnist"]
    cli("bench", "--quick", *cases, "--repetitions", 3, "--data-dir", tmp_path)
    cli("bench", "--table")
    assert calls == [
        ["--quick", "--cases", "fedcp-mnist", "fedavg-mnist", "--repetitions", "3", "--data-dir", str(tmp_path)],
        ["--table"],
    ]


def test_the_benchmark_checks_its_options(cli):
    result = cli("bench", "--case", "fedpc-mnist", exit_code=2)
    assert "invalid choice: 'fedpc-mnist'" in result.output


def test_error_without_a_checkout_names_the_remedy(cli, monkeypatch):
    monkeypatch.setitem(sys.modules, BENCHMARK, None)
    result = cli("bench", "--quick", exit_code=2)
    for text in ("checkout", BENCHMARK, "python -m bench.end_to_end"):
        assert text in result.output
