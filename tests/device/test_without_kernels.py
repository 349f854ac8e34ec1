"""A machine with a GPU and a library of CPU kernels only: operators run their reference on the GPU, said once."""

import json
import re
import warnings

import pytest
import torch

from pfl_fast import ops
from pfl_fast.native.load import Native
from pfl_fast.ops import backend
from tests.cli.conftest import cli
from tests.device import fake_cuda
from tests.engine import small_experiments as small

__all__ = ["cli"]
pytestmark = [
    pytest.mark.usefixtures("one_core"),
    pytest.mark.skipif(not ops.NATIVE.available, reason="the native library is not available"),
]


@pytest.fixture(autouse=True)
def cpu_kernels_only(gpus, monkeypatch):  # noqa: ARG001 after the fake GPUs
    monkeypatch.setattr(backend, "has_kernel", lambda _op, device_type: device_type != "cuda")
    monkeypatch.setattr(backend, "_warned", set())


def trained(**values):
    dataset = small.images(40)
    with small.trained(
        "fedcp",
        dataset=dataset,
        model=small.convolutional(),
        sizes=(5, 3, 4),
        dtype="float32",
        log=lambda _: None,
        **values,
    ) as running:
        tensors = {name: fake_cuda.values_of(tensor) for name, tensor in small.state_of(running).items()}
        return running.round.executor.name, tensors


def test_training_by_default_runs_the_reference_and_says_it_once():
    with warnings.catch_warnings(record=True) as caught, fake_cuda.recorded() as record:
        warnings.simplefilter("always")
        executor, tensors = trained(executor="auto", device="auto")
    texts = [str(warning.message) for warning in caught if "native kernel" in str(warning.message)]
    assert len(texts) == 1
    assert re.search(r"pfl_fast::\w+ has no native kernel for cuda tensors.*plain PyTorch", texts[0])
    assert executor == "batched"
    assert not record.mixed
    _, expected = trained(executor="batched", device="cpu", ops="reference")
    # Under vmap, torch multiplies wrapped tensors in another order than plain ones; elsewhere the bits are equal.
    assert small.differences(tensors, expected, 1e-6) == {}


def test_native_operators_can_be_demanded():
    with fake_cuda.recorded(), ops.use("native"):
        h, a = torch.ones(1, 2, device="cuda"), torch.ones(1, 4, device="cuda")
        with pytest.raises(RuntimeError, match="pfl_fast::route has no native kernel for cuda"):
            ops.route(h, a)


def test_warning_names_the_remedy(monkeypatch):
    info = ops.NATIVE.info.__class__("", "", [], "", None, "", cuda_problem=None)
    monkeypatch.setattr(backend, "NATIVE", Native(ops.NATIVE.folder, info))
    monkeypatch.setattr("pfl_fast.native.build.find_nvcc", lambda: None)
    major = int(torch.version.cuda.split(".")[0])
    remedy = "pip install 'nvidia-cuda-nvcc==" if major >= 13 else "install nvcc of the CUDA toolkit"
    with fake_cuda.recorded(), pytest.warns(RuntimeWarning, match=remedy):
        ops.route(torch.ones(1, 2, device="cuda"), torch.ones(1, 4, device="cuda"))


def test_doctor_trains_on_the_gpu(cli, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Fake GPU")
    with fake_cuda.recorded():
        diagnosis = json.loads(cli("doctor", "--json").output)
    assert diagnosis["facts"]["devices"]["training"] == "one round of FedCP succeeded on cuda:0"


def test_doctor_exits_with_1_if_training_fails_on_the_gpu(cli, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Fake GPU")
    monkeypatch.setattr(backend, "_chosen", "native")
    with fake_cuda.recorded():
        page = cli("doctor", exit_code=1).output
    assert "training fails with RuntimeError: pfl_fast::take_normalized has no native kernel for cuda tensors" in page
    assert "--device cpu" in page
    assert "Not ready to train." in page
