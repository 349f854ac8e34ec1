"""``Method.parts`` is a pure function of the method and the backbone."""

import pytest
import torch

from pfl_fast import Experiment
from pfl_fast.methods import METHODS
from pfl_fast.models import build
from pfl_fast.randomness import torch_seed

SETTINGS = {"dataset": "synthetic", "samples": 60, "clients": 3, "model": "mlp", "log": lambda _: None}


@pytest.mark.parametrize("name", METHODS)
def test_parts_changes_no_attribute_and_returns_the_same_table_twice(name):
    experiment = Experiment(name, **SETTINGS)
    method, data = experiment.method, experiment.data
    backbone = build("mlp", input_shape=data.input_shape, classes=method.context.classes)
    attributes = dict(vars(method))
    tables = []
    for _ in range(2):
        with torch_seed(7):
            tables.append(method.parts(backbone))
        assert vars(method) == attributes
    first, second = ([(name, *facts(part)) for name, part in table.items()] for table in tables)
    assert [row[:-1] for row in first] == [row[:-1] for row in second]
    for (*_, one), (*_, other) in zip(first, second, strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in one)


def facts(part):
    """All fields of a part, and last its tensors by name."""
    fields = {key: value for key, value in vars(part).items() if key not in ("module", "client_values")}
    return fields, {**part.module.state_dict(), **{f"clients' {key}": v for key, v in part.client_values.items()}}
