"""Rounds on ghost GPUs: torch's host code for CUDA runs, kernels are counted."""

import json
import subprocess
import sys

import pytest
import torch

from pfl_fast import ops
from tests.device.ghost import budget, build

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(build.missing() is not None, reason=str(build.missing())),
    pytest.mark.skipif(not ops.NATIVE.available, reason="the native library is not available"),
]
GROWTH = 1.05


@pytest.fixture(scope="module")
def counted():
    """Figures of all cases, counted in one process."""
    return budget.count(budget.CASES)


@pytest.mark.parametrize("case", budget.CASES, ids=lambda case: budget.case_name(*case))
def test_rounds_stay_within_the_budget(case, counted):
    recorded = json.loads(budget.FILE.read_text())
    if recorded["torch"] != torch.__version__:
        pytest.skip(f"the budget is of torch {recorded['torch']}, whose launches differ from those of other versions")
    allowed, found = recorded[budget.case_name(*case)], counted[budget.case_name(*case)]
    grown = {
        f"{name} per {unit}": (value, allowed[unit][name])
        for unit, values in found.items()
        for name, value in values.items()
        if value > GROWTH * allowed[unit][name]
    }
    assert not grown, "grown by more than 5 %; if that is meant: python -m tests.device.ghost.budget"
    assert found["step"]["launches"] > 0


@pytest.mark.parametrize("case", budget.CASES, ids=lambda case: budget.case_name(*case))
def test_a_step_copies_nothing_and_waits_for_nothing(case, counted):
    found = counted[budget.case_name(*case)]
    step = found["step"]
    assert (step["copies to device"], step["copies to host"], step["synchronisations"]) == (0, 0, 0)
    assert step["bytes to host"] <= 3 * 8 * budget.CLIENTS, "loss and recorded values, copied after the round"


def test_a_step_is_one_graph_whose_batch_and_results_are_copied(counted):
    for figures in counted.values():
        step = figures["step"]
        assert step["launches"] <= 3
        assert step["copies on device"] <= 6
        assert step["kernels"] > 40


def test_resnet18_takes_at_most_400_kernels_per_step(counted):
    assert max(figures["step"]["kernels"] for name, figures in counted.items() if "resnet18" in name) <= 400


def test_waits_do_not_depend_on_clients_and_layers(counted):
    """ResNet-18 has seven times as many tensors as the CNN."""
    few = budget.run(method="fedcp", clients=3, steps=1)["figures"]
    names = ("synchronisations", "copies to device", "copies to host")
    for model in ("cnn", "resnet18"):
        many = counted[budget.case_name("fedcp", model)]["round"]
        assert [many[name] for name in names] == [few[name] for name in names]
    assert few["synchronisations"] <= 5


def test_two_gpus_share_the_clients():
    requests = [{"method": "fedavg", "clients": 6, "steps": steps, "capture": "off"} for steps in (1, 3)]
    (one,), (few, many) = budget.run_all(requests[:1]), budget.run_all(requests, gpus=2)
    assert one["devices"] == ["cuda:0"]
    assert few["devices"] == ["cuda:0", "cuda:1"]
    assert few["figures"]["launches"] > one["figures"]["launches"]
    assert many["figures"]["launches"] > few["figures"]["launches"]
    assert many["figures"]["changes of the device"] == few["figures"]["changes of the device"], "none in a step"
    model = 4 * 582_026
    assert few["figures"]["bytes between devices"] <= 1.001 * (1 + 3) * model, "the model once, three uploads"
    assert few["figures"]["bytes to device"] + few["figures"]["bytes to host"] < 0.01 * model


@pytest.mark.parametrize(
    "values",
    [
        {"method": "fedavg", "clients": 20},
        {"method": "fedcp", "clients": 20},
        {"method": "fedpick", "clients": 20},
        {"method": "fedcp", "clients": 20, "model": "resnet18"},
    ],
    ids=lambda values: " ".join(map(str, values.values())),
)
def test_estimated_memory_is_close_to_the_allocators_peak(values):
    result = budget.run(**values, steps=1)
    assert 0.8 <= result["estimate"] / result["figures"]["peak bytes"] <= 1.5


def test_exhausted_memory_halves_the_stack():
    """With less memory than the stack needs, and a user who demands it: torch's allocator raises the error."""
    request = {"method": "fedcp", "clients": 8, "steps": 1}
    whole = budget.run(**request)
    assert not whole["messages"]
    peak = whole["figures"]["peak bytes"]
    halved = budget.run(memory=int(0.75 * peak), stack=8, **request)
    assert [text for text in halved["messages"] if "continuing with stacks of 4. stack=4" in text]
    assert halved["figures"]["peak bytes"] < 0.75 * peak
    chosen = budget.run(memory=peak, **request)
    assert [text for text in chosen["messages"] if text.startswith("Stacks of ")]
    assert not [text for text in chosen["messages"] if "too little memory" in text]


def test_training_without_cuda_kernels_runs_references_and_says_it_once():
    result = budget.run(method="fedcp", clients=3, steps=2, kernels=False)
    texts = [text for text in result["warnings"] if "native kernel" in text]
    assert len(texts) == 1
    assert "pfl_fast::take_normalized has no native kernel for cuda tensors" in texts[0]
    native = budget.run(method="fedcp", clients=3, steps=2)
    assert not [text for text in native["warnings"] if "native kernel" in text]
    assert result["figures"]["launches"] > native["figures"]["launches"]


def test_values_read_from_a_ghost_are_zero():
    """So no count depends on a value."""
    program = (
        "import torch\n"
        "x = torch.ones(3, device='cuda')\n"
        "with torch.cuda.stream(torch.cuda.Stream()):\n"
        "    y = x @ x\n"
        "torch.cuda.synchronize()\n"
        "print(torch.cuda.get_device_name(0), y.item())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=build.environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout == "Ghost of an A100 0.0\n"
