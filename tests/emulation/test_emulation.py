"""Tests of the emulation itself: it accepts a correct kernel and detects each kind of fault."""

from pathlib import Path

import pytest
import torch

from tests.emulation.harness import Call, EmulationError

SOURCE = Path(__file__).with_name("faulty_kernel.cu")
ROUNDS = 3
SEEDS = range(8)
CORRECT, NO_BARRIER_BEFORE_READ, NO_BARRIER_BEFORE_WRITE, OFF_BY_ONE, PLAIN_ADD, DIVERGENT, UNALIGNED = range(7)


def is_caught(emulator, variant, fault, seeds=SEEDS):
    """Returns True if any of the schedules gives a wrong result or an error."""
    return any(_fails(emulator(variant, SOURCE, f"-DFAULT={fault}"), seed) for seed in seeds)


def _fails(compiled, seed):
    values = torch.arange(1.0, 64 * ROUNDS + 1)
    reversed_, total = torch.zeros_like(values), torch.zeros(1, dtype=torch.int64)
    try:
        compiled.run([Call("launch_faulty", [values, reversed_, total, ROUNDS], seed)])
    except EmulationError:
        return True
    expected = values.view(ROUNDS, 64).flip(1).flatten()
    return not torch.equal(reversed_, expected) or int(total) != int(values.sum())


@pytest.mark.parametrize("variant", ["plain", "asan", "tsan"])
def test_passes_a_correct_kernel(emulator, variant):
    assert not is_caught(emulator, variant, CORRECT, seeds=SEEDS if variant == "plain" else range(3))


@pytest.mark.parametrize("fault", [NO_BARRIER_BEFORE_READ, NO_BARRIER_BEFORE_WRITE, DIVERGENT, OFF_BY_ONE])
def test_shuffled_schedules_catch_missing_barriers_and_wrong_indices(emulator, fault):
    assert is_caught(emulator, "plain", fault)


def test_write_after_read_needs_the_depth_first_schedule(emulator):
    """Even seeds are needed: with equal chances, one thread rarely runs far enough ahead."""
    assert is_caught(emulator, "plain", NO_BARRIER_BEFORE_WRITE, seeds=[2, 4, 6])


@pytest.mark.parametrize("fault", [NO_BARRIER_BEFORE_READ, NO_BARRIER_BEFORE_WRITE, PLAIN_ADD])
@pytest.mark.parametrize("seed", [0, 1])
def test_thread_sanitizer_catches_races_under_any_schedule(emulator, fault, seed):
    assert is_caught(emulator, "tsan", fault, seeds=[seed])


@pytest.mark.parametrize("fault", [OFF_BY_ONE, UNALIGNED])
def test_address_and_undefined_sanitizers_catch_bad_accesses(emulator, fault):
    assert is_caught(emulator, "asan", fault, seeds=[0])


def test_deadlock_error_counts_waiting_threads(emulator):
    values = torch.ones(64 * ROUNDS)
    call = Call("launch_faulty", [values, torch.zeros_like(values), torch.zeros(1, dtype=torch.int64), ROUNDS], 0)
    with pytest.raises(
        EmulationError, match=r"forever: \d+ at __syncthreads, 0 in a warp operation, \d+ have returned"
    ):
        emulator("plain", SOURCE, f"-DFAULT={DIVERGENT}").run([call])
