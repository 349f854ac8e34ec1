"""Names of all analyses: one line about each, the methods it suits, and the function that applies it to a run.

Imports nothing, so that ``pfl-fast analyse --help`` is instant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class AnalysisEntry:
    """One analysis.

    Attributes:
        summary: noun phrase for ``--help``.
        function: ``"module:function"`` below ``pfl_fast.analysis``; takes a run and options, returns a result.
        methods: methods it suits; empty: all.
        needs: condition on the run besides its method, in words.
        slow: True if it takes minutes; ``all`` leaves it out.
    """

    summary: str
    function: str
    methods: tuple[str, ...] = ()
    needs: str = ""
    slow: bool = False


SNAPSHOTS = "snapshots (train --snapshots N)"
PARTIALFED = ("partialfed-adaptive", "partialfed-fix")

ANALYSES: Mapping[str, AnalysisEntry] = {
    "accuracy-heatmap": AnalysisEntry("accuracy of each client for each class", "classes:accuracy_heatmap"),
    "fairness": AnalysisEntry(
        "accuracy over clients: standard deviation, worst decile, Gini coefficient", "fairness:fairness"
    ),
    "calibration": AnalysisEntry(
        "expected calibration error (ECE) and reliability of the predicted probabilities", "calibration:calibration"
    ),
    "cka": AnalysisEntry("similarity of the clients' features: linear CKA between their extractors", "similarity:cka"),
    "cosine": AnalysisEntry(
        "similarity of the clients' parameters: cosine between their updates, by layer",
        "similarity:cosine",
        needs=SNAPSHOTS,
    ),
    "drift": AnalysisEntry(
        "distance of the clients' parameters from the server's after local training, by layer",
        "drift:drift",
        needs=SNAPSHOTS,
    ),
    "label-histogram": AnalysisEntry("training samples of each client and class", "classes:label_histogram"),
    "cost": AnalysisEntry("seconds, rounds to the best accuracy and parameters sent", "cost:cost"),
}
