"""Peak memory of one epoch over a large memory-mapped data set."""

import subprocess
import sys

import numpy as np
import pytest

# Measures the growth of the process's peak memory (ru_maxrss) after importing torch, which takes half a gigabyte in
# CUDA builds. Touched pages of the mapped file count.
SCRIPT = """
import resource, sys
import numpy as np
from pfl_fast.data.dataset import Dataset
from pfl_fast.data.federated import FederatedData
from pfl_fast.data.partition import PartitionSpec, make_partition

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

before = peak()
x = np.load(sys.argv[1], mmap_mode="r")
y = np.arange(len(x)) % 200
dataset = Dataset("large", x, y, tuple(map(str, range(200))), np.zeros(len(x), bool), (0.5,) * 3, (0.5,) * 3)
data = FederatedData(dataset, make_partition(dataset, PartitionSpec("dirichlet", clients=20)))
seen = sum(len(y) for client in range(20) for _, y, _ in data.batches(client, 0, 0))
seen += sum(group.y.numel() for groups in data.stacked_batches(range(20), 0, 1) for group in groups)
seen += sum(len(y) for client in range(20) for _, y in data.evaluation("test", client))
print(seen, peak() - before)
"""


@pytest.mark.slow
def test_peak_stays_below_one_and_a_half_times_the_images(tmp_path):
    count = 100_000
    file = tmp_path / "x.npy"
    images = np.lib.format.open_memmap(file, mode="w+", dtype=np.uint8, shape=(count, 64, 64, 3))
    pattern = np.random.default_rng(0).integers(0, 256, (1000, 64, 64, 3), dtype=np.uint8)
    for first in range(0, count, 1000):
        images[first : first + 1000] = pattern
    size = images.nbytes
    del images
    out = subprocess.run([sys.executable, "-c", SCRIPT, file], capture_output=True, text=True, check=True).stdout
    file.unlink()
    seen, peak = map(int, out.split())
    assert seen > 1.7 * count
    assert peak < 1.5 * size, f"{peak / 1e9:.2f} GB for {size / 1e9:.2f} GB of images"
