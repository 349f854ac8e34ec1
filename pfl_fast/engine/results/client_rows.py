"""Rows of ``clients.csv``: one per client and evaluated round."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any

import numpy as np

from pfl_fast.data.federated import FederatedData
from pfl_fast.engine.results.listeners import RunView


def client_columns(run: RunView) -> list[str]:
    """Returns the columns of ``clients.csv``, which do not depend on results.

    The names of a method's recorded quantities are only known after local training, and may differ between rounds.
    They share the column ``recorded``, a JSON object; metrics with one value per class are JSON lists.
    """
    first = ["round", "client", "client_name", "domain", "train_loss", "seconds", "recorded"]
    measured = [
        f"{split}_{metric}_{when}"
        for split in run.data.tests
        for metric in run.metrics
        for when in ("after_agg", "after_local")
    ]
    return [*first, *(f"{split}_samples" for split in run.data.tests), *measured]


def client_names(data: FederatedData) -> list[dict[str, str]]:
    """Returns name and domain of each client.

    Names are those of the partition. Without them, a client with a single domain has the domain's name, numbered if
    other clients have the same one. The domain is that of the training samples; several are joined by ``+``.
    """
    dataset, lots = data.dataset, data.partition.train
    given = data.partition.names
    if dataset.domain is None:
        names = given or [f"client {client}" for client in range(len(lots))]
        return [{"client_name": name, "domain": ""} for name in names]
    found = [[dataset.domains[d] for d in np.unique(dataset.domain[lot])] for lot in lots]
    shared, seen = Counter(names[0] for names in found if len(names) == 1), Counter[str]()
    result = []
    for client, names in enumerate(found):
        name = names[0] if len(names) == 1 else f"client {client}"
        seen[name] += 1
        numbered = f"{name} {seen[name]}" if shared[name] > 1 else name
        result.append({"client_name": given[client] if given else numbered, "domain": "+".join(names)})
    return result


def csv_text(columns: list[str], rows: Iterable[Mapping[str, Any]], header: bool = False) -> str:
    """Returns rows as CSV; values without a column are left out."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    if header:
        writer.writeheader()
    writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, dict):  # JSON has no NaN
        value = {name: v if isfinite(v) else None for name, v in value.items()}
    return json.dumps(value) if isinstance(value, (list, dict)) else value
