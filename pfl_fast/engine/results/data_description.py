"""``data.json`` of a run folder: what a model must know about its data, so that it can be used without the data set."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from pfl_fast.data.dataset import Dataset
from pfl_fast.data.federated import FederatedData
from pfl_fast.engine.results.client_rows import client_names
from pfl_fast.engine.results.disk_errors import RunFolderError
from pfl_fast.engine.state.checkpoint import json_digest

NAME = "data.json"
_COPIED = ("name", "classes", "mean", "std", "domains", "vocabulary", "source")


def data_text(data: FederatedData) -> str:
    """Returns the contents of ``data.json``: shape, classes, normalisation, and the names of the clients."""
    dataset = data.dataset
    about: dict[str, Any] = {name: getattr(dataset, name) for name in _COPIED}
    about |= {"dtype": str(dataset.x.dtype), "shape": dataset.x.shape, "has_domains": dataset.domain is not None}
    about["clients"] = [names["client_name"] for names in client_names(data)]
    about["digest"] = json_digest(json.loads(json.dumps(about)))
    return json.dumps(about, indent=1) + "\n"


def read_description(folder: Path) -> tuple[Dataset, list[str]]:
    """Returns a data set of zeros, which take no memory until they are read, and the names of the clients."""
    file = folder / NAME
    try:
        about = json.loads(file.read_text(encoding="utf-8"))
        if json_digest(about) != about["digest"]:
            raise ValueError("changed since the run wrote it")
        samples = int(about["shape"][0])
        fields: dict[str, Any] = {name: tuple(v) if isinstance(v := about[name], list) else v for name in _COPIED}
        labels = np.zeros(samples, np.int64)
        return Dataset(
            x=np.zeros(about["shape"], about["dtype"]),
            y=labels,
            test=np.zeros(samples, bool),
            domain=labels if about["has_domains"] else None,
            **fields,
        ), [str(name) for name in about["clients"]]
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise RunFolderError(
            f"{file}: missing or damaged ({error}); pfl-fast resume {folder} makes it again, from the data set"
        ) from error
