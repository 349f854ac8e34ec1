"""Runs of several ranks: results, interruptions, another number of ranks, errors of one rank."""

import json

import pytest
import torch

from pfl_fast.methods import METHODS
from pfl_fast.methods.base import Method
from tests.chaos.ranks import lost_by_killing

from . import small_experiments as small
from .rank_runs import results_of, run_ranks

AVERAGES = {name for name, method in METHODS.items() if method.aggregate is Method.aggregate}


@pytest.mark.slow
@pytest.mark.parametrize(("size", "methods"), [(2, METHODS), (3, ["fedavg", "fedbn", "fedamp", "fedfomo", "scaffold"])])
def test_ranks_have_the_results_of_one_process(tmp_path, size, methods):
    """Float64: up to the rounding of sums; to the bit where the server gets every upload instead of sums."""
    outputs, codes = run_ranks(size, "train_methods", tmp_path / "results.pt", *methods)
    assert codes == [0] * size, outputs
    results = torch.load(tmp_path / "results.pt")
    assert list(results) == list(methods)
    for method, expected_state, expected_records in results_of(methods):
        state, records = results[method]
        tolerance = 1e-9 if method in AVERAGES else 0.0
        assert small.differences(state, expected_state, tolerance) == {}, method
        small.assert_same_records(records, expected_records, tolerance)


@pytest.mark.slow
def test_another_number_of_ranks_resumes_a_run(tmp_path):
    folder = tmp_path / "run"
    for size, function, round in ((2, "begin", 2), (3, "go_on", 3)):
        outputs, codes = run_ranks(size, function, folder)
        assert codes == [0] * size, outputs
        assert outputs[0].startswith(f"interrupted in round {round} after "), outputs
    resumed = small.resume_image_experiment(folder)
    assert resumed.state.rounds_done == 2
    assert 0 < len(resumed.state.unfinished.reports) < 6
    resumed.run()
    whole = small.image_experiment("fedcp", dtype="float64", rounds=4)
    whole.run()
    assert small.differences(small.state_of(resumed), small.state_of(whole), 1e-9) == {}
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [record["round"] for record in records] == [1, 2, 3, 4]
    small.assert_same_records(small.untimed_records(resumed), small.untimed_records(whole), 1e-9)
    for running in (resumed, whole):
        running.close()


@pytest.mark.slow
def test_an_error_of_one_rank_ends_all_ranks_after_a_checkpoint(tmp_path):
    outputs, codes = run_ranks(2, "fail", tmp_path / "run")
    assert codes == [0, 0], outputs
    assert outputs == ["RankFailed: rank 1: no more\n", "PflFastError: no more\n"]
    resumed = small.resume_image_experiment(tmp_path / "run")
    assert len(resumed.state.unfinished.reports) == 4, "three clients of rank 0, the first of rank 1"
    resumed.close()


@pytest.mark.slow
@pytest.mark.parametrize(("phase", "victim"), [("on_client", 1), ("aggregate", 0)])
def test_a_rank_that_dies_is_named_and_nothing_is_lost(tmp_path, phase, victim):
    """``python -m tests.chaos.ranks`` kills both ranks in every phase."""
    assert lost_by_killing(tmp_path / "run", phase, victim) is None
