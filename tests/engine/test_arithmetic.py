"""Settings of precision and determinism."""

import os

import pytest
import torch

from pfl_fast.errors import ConfigError
from pfl_fast.methods import METHODS
from pfl_fast.methods.fedavg import FedAvg
from tests.engine import small_experiments as small

pytestmark = pytest.mark.usefixtures("one_core")


def switches():
    backends = (torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn)
    return [backend.fp32_precision for backend in backends], torch.are_deterministic_algorithms_enabled()


class Watching(FedAvg):
    """Records torch's switches during training."""

    def loss(self, client, batch):
        self.seen = switches()
        return super().loss(client, batch)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, (["ieee"] * 3, False)),
        ({"precision": "tf32"}, (["tf32"] * 3, False)),
        ({"precision": "bf16"}, (["ieee"] * 3, False)),
        ({"deterministic": True}, (["ieee"] * 3, True)),
    ],
)
def test_switches_hold_during_training_only(settings, expected, monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    before = switches()
    with small.trained(Watching, dtype="float32", rounds=1, **settings) as running:
        assert running.method.seen == expected
    assert switches() == before
    assert ("CUBLAS_WORKSPACE_CONFIG" in os.environ) == bool(settings.get("deterministic"))


@pytest.mark.parametrize("executor", ["sequential", "batched"])
@pytest.mark.parametrize("method", METHODS)
def test_bf16_is_near_float32(method, executor):
    outcomes = {}
    for precision in ("highest", "bf16"):
        values = {"dtype": "float32", "precision": precision, "executor": executor, "sizes": (5, 3, 4), "lr": 0.02}
        with small.trained(method, **values) as running:
            outcomes[precision] = small.state_of(running)
    assert {t.dtype for t in outcomes["bf16"].values() if t.is_floating_point()} == {torch.float32}
    differences = small.differences(*outcomes.values(), 0)
    assert differences, "products were not in bfloat16"
    assert max(differences.values()) < 0.1


def test_lower_precision_is_refused_for_float64():
    with pytest.raises(ConfigError, match="precision: bf16 is for dtype float32, got dtype float64"):
        small.experiment("fedavg", dtype="float64", precision="bf16")
