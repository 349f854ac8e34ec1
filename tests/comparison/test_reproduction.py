"""Differences, orderings and estimates by hand."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from pfl_fast.comparison.estimate import Pace
from pfl_fast.comparison.recipes import Expected
from pfl_fast.comparison.reproduction import Cell, Ordering, data_text
from pfl_fast.config import Settings
from tests.comparison.test_recipes import generated


def cell(paper, ours, data="paper"):
    return Cell("a", "", "fedcp", "FedCP", paper, ours, (0, 1), data)


@pytest.mark.parametrize(
    ("paper", "ours", "difference", "deviations"),
    [
        (Expected(90, 3), Expected(80, 4), -10, -2),
        (Expected(90, None), Expected(80, 4), -10, -2.5),
        (Expected(90, 4), Expected(100, None), 10, 2.5),
        (Expected(90, 0), Expected(80, None), -10, None),
        (None, Expected(80, 4), None, None),
        (Expected(90, 3), None, None, None),
    ],
)
def test_difference_in_standard_deviations(paper, ours, difference, deviations):
    assert cell(paper, ours).difference == difference
    assert cell(paper, ours).deviations == deviations
    for data in ("other", "generated"):
        assert cell(paper, ours, data).difference is None
        assert cell(paper, ours, data).deviations is None


@pytest.mark.parametrize(
    ("paper", "ours", "spread", "verdict"),
    [
        (1.0, 0.5, None, "shows"),
        (1.0, 0.5, 0.4, "shows"),
        (-1.0, -0.5, 0.4, "shows"),
        (1.0, -0.5, 0.4, "reversed"),
        (1.0, -0.5, 0.5, "undecided"),
    ],
)
def test_orderings(paper, ours, spread, verdict):
    assert Ordering("a", "FedAvg", "FedCP", paper, ours, spread).verdict == verdict


def test_seconds_of_a_run_by_hand():
    pace = Pace(training=0.5, tests=0.25, client=2.0)
    partition = SimpleNamespace(train=[np.arange(4), np.arange(6)], test=[np.arange(3), np.arange(5)], clients=2)
    settings = Settings(rounds=7, eval_every=3)
    assert pace.seconds(settings, partition, 0) == 7 * (10 * 0.5 + 2 * 2.0) + 3 * 8 * 0.25
    assert pace.seconds(settings, partition, 5) == 12 * (10 * 0.5 + 2 * 2.0) + 4 * 8 * 0.25
    half = Settings(rounds=7, eval_every=3, join_ratio=0.5)
    assert pace.seconds(half, partition, 0) == 7 * (5 * 0.5 + 1 * 2.0) + 3 * 8 * 0.25


def test_data_says_what_is_missing():
    mnist = generated("mnist")
    assert data_text(mnist, "mnist") == (
        "mnist (synthetic stand-in, 6,000 of 70,000 samples): generated, NOT the paper's data (mnist), so nothing is "
        "compared"
    )
    real = replace(mnist, source="real")
    assert data_text(real, "mnist") == "mnist (real, 6,000 of 70,000 samples)"
    assert data_text(real, "cifar10").endswith("): NOT the paper's data (cifar10), so numbers are not compared")
