import pytest
import torch

from tests.device import fake_cuda


@pytest.fixture
def gpus(monkeypatch, request):
    """Fake GPUs; the parameter is their number."""
    if torch.version.cuda is None:
        pytest.skip("needs a torch built with CUDA; no GPU is needed")
    count = getattr(request, "param", 1)
    fake_cuda.install(monkeypatch, count)
    return ",".join(f"cuda:{i}" for i in range(count))
