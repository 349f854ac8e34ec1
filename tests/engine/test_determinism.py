"""A run repeats to the bit: with the same seed, any number of workers, and any hash seed of Python."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pfl_fast.methods import METHODS
from tests.engine import small_experiments as small

pytestmark = pytest.mark.usefixtures("one_core")

ROOT = Path(__file__).resolve().parents[2]


def fingerprint(method, **settings):
    """Digest of the tensors and the records of a run."""
    own = small.METHOD_SETTINGS.get(method, {})
    values = {"rounds": 2, "norm": True, "join_ratio": 0.7, "momentum": 0.5, **own, **settings}
    running = small.image_experiment(method, **values)
    running.run()
    result = hashlib.sha256(json.dumps(small.untimed_records(running), sort_keys=True).encode())
    for name, tensor in sorted(small.state_of(running).items()):
        result.update(name.encode() + tensor.contiguous().numpy().tobytes())
    running.close()
    return result.hexdigest()


@pytest.mark.parametrize("method", METHODS)
def test_the_same_seed_gives_the_same_bits(method):
    first = fingerprint(method)
    assert fingerprint(method) == first
    assert fingerprint(method, seed=1) != first


@pytest.mark.parametrize("method", METHODS)
def test_the_number_of_workers_does_not_change_a_bit(method):
    """One thread of torch per worker, so a client's sums have the same order on each."""
    expected = fingerprint(method)
    for workers in (1, 2, 8):
        assert fingerprint(method, executor="threads", workers=workers) == expected, workers


@pytest.mark.parametrize("method", METHODS)
def test_batched_repeats_to_the_bit(method):
    """Sums have another order than one client's alone, but always the same one."""
    first = fingerprint(method, executor="batched", stack=2)
    assert fingerprint(method, executor="batched", stack=2) == first


CHILD = """
import json
import torch
from pfl_fast.methods import METHODS
from tests.engine.test_determinism import fingerprint
torch.set_num_threads(1)
print(json.dumps({method: fingerprint(method) for method in METHODS}))
"""


@pytest.fixture(scope="module")
def by_hash_seed():
    """Fingerprints of all methods in new processes with different hash seeds."""
    found = []
    for number in ("0", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": number}
        done = subprocess.run([sys.executable, "-c", CHILD], cwd=ROOT, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_the_hash_seed_of_python_does_not_change_a_bit(by_hash_seed, method):
    first, second = by_hash_seed
    assert first[method] == second[method] == fingerprint(method)


def test_two_devices_on_the_cpu_share_its_cores(monkeypatch):
    asked = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 6)
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    for device, threads in (("cpu", set()), ("cpu,cpu", {3})):
        with small.trained("fedavg", executor="batched", device=device, stack=1, rounds=1):
            assert set(asked) == threads
