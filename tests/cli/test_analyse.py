"""``pfl-fast analyse``."""

from tests.cli.conftest import SMALL


def test_analyse_prints_what_it_wrote_and_what_it_left_out(cli):
    cli("train", "fedavg", *SMALL, "--out", "run", "--quiet")
    result = cli("analyse", "run", "--what", "all", "--format", "svg,png")
    assert "fairness                 fairness.json, fairness.csv, fairness.svg, fairness.png" in result.output
    assert "drift                    left out: the run kept no models of its rounds; train it with" in result.output
    assert "in run/analysis" in result.output


def test_wrong_requests_exit_with_2(cli):
    assert "there is no analysis 'x'" in cli("analyse", "run", "--what", "x", exit_code=2).output
    assert "choose from svg, png, pdf" in cli("analyse", "run", "--format", "gif", exit_code=2).output
    assert "holds no run" in cli("analyse", "nowhere", "--what", "cost", exit_code=2).output


def test_help_lists_every_analysis(cli):
    from pfl_fast.analysis import ANALYSES

    text = " ".join(cli("analyse", "--help").output.split())
    assert all(f"{name} {entry.summary.split()[0]}" in text for name, entry in ANALYSES.items())
