"""The cost model of GPUs, against costs computed by hand."""

import json
from math import inf
from pathlib import Path

import pytest
import torch

from pfl_fast.data.synthetic import synthetic
from pfl_fast.engine.device_memory import MetaStack
from pfl_fast.engine.gpu_plan import LAUNCH, Gpu, plan_round
from pfl_fast.engine.kernel_counts import Kernel, KernelCounter
from pfl_fast.engine.memory import MetaClient
from pfl_fast.methods import METHODS
from pfl_fast.ops import dispatch
from tests.engine import small_experiments as small

SIZES = (8, 4, 4)  # training samples of the clients: 2, 1 and 1 batches of 4


def gpu(memory=1e9, bandwidth=inf, peak=inf):
    return Gpu("GPU", memory, bandwidth, {"highest": peak})


def planned(method="fedavg", on=None, **values):
    running = small.experiment(method, sizes=SIZES, dtype="float32", **values)
    try:
        return plan_round(
            running.part_table,
            running.method,
            running.data,
            running.settings,
            on or gpu(),
            "highest",
            values.get("stack", 0),
        )
    finally:
        running.close()


def test_an_operator_takes_the_longest_of_launches_bytes_and_flops():
    kernels = [Kernel("a", 2, 10, 0), Kernel("b", 1, 3000, 50), Kernel("c", 1, 20, 9000)]
    device = gpu(bandwidth=1e6, peak=1e5)
    assert device.seconds(kernels, "highest") == pytest.approx(2 * LAUNCH + 3e-3 + 9e-2)
    assert device.seconds(kernels, "highest", share=0.5) == pytest.approx(2 * LAUNCH + 1.5e-3 + 4.5e-2)


def test_operators_are_counted_with_the_memory_they_touch():
    image, weight = torch.empty(1, 1, 4, 4, device="meta"), torch.empty(2, 1, 3, 3, device="meta", requires_grad=True)
    with KernelCounter() as counter:
        y = torch.nn.functional.conv2d(image, weight)  # 2x2 pixels
        patches = image.unfold(2, 3, 1).unfold(3, 3, 1).clone()  # 4 patches of 9 pixels, of 16 different ones
        torch.empty(100, device="meta").view(10, 10)
        torch.autograd.grad(y.sum(), weight)
    assert patches.numel() == 36
    found = {kernel.name: kernel for kernel in counter.kernels}
    assert set(found) == {"convolution", "clone", "sum", "ones_like", "convolution_backward"}
    assert found["convolution"] == Kernel("convolution", 1, 4 * (16 + 18 + 8), 2 * 8 * 9)
    assert found["clone"] == Kernel("clone", 1, 4 * (16 + 36), 0)
    assert found["convolution_backward"].launches == 1, "the image needs no gradient"


def test_flops_and_steps_of_a_small_network():
    """Layers 6 -> 5 -> 3: two products forward, three backward, since the input needs no gradient."""
    (phase,) = planned().phases
    each = 2 * 4 * (6 * 5 + 5 * 3)  # of one client with 4 samples
    assert phase.flops == 3 * (each + each + 2 * 4 * 5 * 3)
    assert phase.steps == 2
    assert phase.seconds == pytest.approx(phase.launches * LAUNCH)
    assert phase.seconds_per_round == pytest.approx(2 * phase.seconds)


def test_only_clients_with_a_batch_left_cost_bytes_and_flops():
    (by_bytes,) = planned(on=gpu(bandwidth=1.0)).phases
    assert by_bytes.seconds == pytest.approx(by_bytes.bytes)
    assert by_bytes.seconds_per_round == pytest.approx(by_bytes.bytes * (1 + 1 / 3))
    twice = planned(on=gpu(bandwidth=1.0), local_epochs=2)
    assert twice.phases[0].seconds_per_round == pytest.approx(2 * by_bytes.seconds_per_round)


def test_the_round_is_the_sum_of_its_parts():
    whole = planned(on=gpu(bandwidth=1e6))
    model = 4 * (6 * 5 + 5 + 5 * 3 + 3)
    assert whole.aggregation == pytest.approx((3 + 1) * model / 1e6)
    assert whole.seconds == pytest.approx(whole.phases[0].seconds_per_round + whole.tests + whole.aggregation)
    assert planned(eval_every=2).tests == pytest.approx(planned().tests / 2)
    assert planned(eval_at="after_agg").tests == pytest.approx(planned().tests / 2)


def test_small_stacks_need_more_launches():
    one, two = planned(), planned(stack=2)
    assert (one.stack, two.stack) == (3, 2)
    assert two.phases[0].steps == 3, "2 of the first two clients, 1 of the last"
    assert two.memory < one.memory
    assert planned(on=gpu(memory=1e3)).stack == 1, "nothing fits"


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_a_plan(method):
    found = planned(method)
    assert found.seconds > 0
    assert all(phase.launches > 5 for phase in found.phases)


@pytest.mark.parametrize("method", ["fedavg", "fedcp"])
def test_counted_launches_are_close_to_those_of_the_ghost_gpu(method):
    """The ghost counts the kernels of the captured step."""
    file = Path(__file__).parents[1] / "device" / "ghost" / "budget.json"
    counted = json.loads(file.read_text())[f"{method} cnn"]["step"]["kernels"]
    partition = small.partition_of([20] * 20, 5)
    dataset = synthetic(500, (1, 28, 28), 10, seed=3)
    running = small.Experiment(
        method, dataset=dataset, partition=partition, model="cnn", batch_size=10, log=lambda _: None
    )
    stack = MetaStack(MetaClient(running.part_table, running.method, running.data, running.settings), 20)
    with dispatch.traced_as("cuda"), KernelCounter() as counter:
        stack.step(running.method.phases(1)[0])
    launches = sum(kernel.launches for kernel in counter.kernels)
    assert 0.75 * counted <= launches <= 1.1 * counted
