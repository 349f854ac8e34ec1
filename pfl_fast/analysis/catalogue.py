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
FEDCP = ("fedcp",)
ONE_PHASE = ("fedavg", "fedper", "fedcp")  # with one phase and loss of local training
FEDPICK = ("fedpick",)
ENCODERS = ("fedpick", "fedavg", "fedbn")
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
    "global-accuracy": AnalysisEntry("accuracy of the server's model by round", "server:global_accuracy"),
    "cost": AnalysisEntry("seconds, rounds to the best accuracy and parameters sent", "cost:cost"),
    "sparsity": AnalysisEntry(
        "sparsity ratio of the features by round, before and after aggregation (FedPick Fig. 2)",
        "fedpick:sparsity",
        ENCODERS,
        SNAPSHOTS,
    ),
    "knn-probe": AnalysisEntry(
        "nearest neighbours on the best 10 to 100 % of the features (FedPick Fig. 1, 3)", "fedpick:probe", ENCODERS
    ),
    "fisher": AnalysisEntry("Fisher score of relevant and irrelevant features (Fig. 9)", "fedpick:fisher", FEDPICK),
    "selection-ratio": AnalysisEntry(
        "share of relevant features of each client (Fig. 7)", "fedpick:selection", FEDPICK
    ),
    "overlap": AnalysisEntry(
        "overlap of the important features of the clients (Fig. 10)", "fedpick:important_overlap", FEDPICK
    ),
    "tsne": AnalysisEntry("t-SNE of relevant and irrelevant features (Fig. 8)", "fedpick:tsne", FEDPICK),
    "pir": AnalysisEntry("personal information ratio of each client by round (FedCP Fig. 5a)", "fedcp:pir", FEDCP),
    "s-distribution": AnalysisEntry(
        "distribution of s over the samples of each client (Fig. 5b)", "fedcp:shares", FEDCP
    ),
    "local-learning": AnalysisEntry(
        "loss and accuracy before and after local learning by round (FedCP Fig. 6)",
        "fedcp:local_learning",
        ONE_PHASE,
        SNAPSHOTS,
    ),
    "saliency": AnalysisEntry(
        "Grad-CAM with one head active (FedCP Fig. 3), of generic and personal features (FediOS Fig. 1)",
        "saliency:saliency",
        ("fedcp", "fedios"),
        "captum (pip install 'pfl-fast[saliency]')",
    ),
    "dlg": AnalysisEntry(
        "deep leakage from gradients: samples reconstructed from uploads, PSNR (FedCP Table 9)",
        "leakage:attack",
        ONE_PHASE,
        slow=True,
    ),
    "mixing": AnalysisEntry("mu of each client by round (FedAFK)", "fedafk:mixing_weights", ("fedafk",)),
    "subspaces": AnalysisEntry(
        "principal angles of the subspaces and energy of the features in them (FediOS)", "fedios:subspaces", ("fedios",)
    ),
    "strategy": AnalysisEntry(
        "probability of the global copy by client, stage and round (PartialFed Fig. 3)",
        "partialfed:strategy",
        PARTIALFED[:1],
    ),
    "loaded-tensors": AnalysisEntry("tensors loaded from the global model", "partialfed:loaded_tensors", PARTIALFED),
    "sweep": AnalysisEntry(
        "accuracy over the option in which several runs differ", "sweep:sweep", needs="a folder of runs"
    ),
}
