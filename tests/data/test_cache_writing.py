import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from pfl_fast.data.cache import read_cache, write_cache
from pfl_fast.data.sources.raw import Raw
from pfl_fast.errors import DataError

BLOCK = 500


def generated(samples, blocks=None):
    """Tiny-ImageNet's shape, without its files."""

    def pieces():
        for start in range(0, samples, BLOCK):
            n = min(BLOCK, samples - start)
            yield np.full((n, 64, 64, 3), start // BLOCK % 256, np.uint8)

    zeros = np.zeros(samples, np.int64)
    return Raw((samples, 64, 64, 3), "uint8", blocks or pieces, zeros, ("a",), zeros > 0)


def test_decoding_holds_one_block_in_memory(tmp_path):
    samples = 7 * BLOCK + 1
    tracemalloc.start()
    try:
        write_cache(tmp_path / "tiny-64", "tiny", generated(samples), ())
        x = read_cache(tmp_path / "tiny-64")[0].x
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 0.4 * x.nbytes
    assert x[::BLOCK, 5, 5, 1].tolist() == list(range(8))


@pytest.mark.slow
def test_peak_memory_of_decoding_tiny_imagenet(tmp_path):
    """Resident set of a process that prepares 100000 images and then reads each once."""
    code = """
import re, sys
from pathlib import Path
from tests.data.test_cache_writing import generated
from pfl_fast.data.cache import read_cache, write_cache
def peak():  # ru_maxrss would include the process that started this one
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024
folder = Path(sys.argv[1])
write_cache(folder, "tiny", generated(100_000), ())
preparing = peak()
x = read_cache(folder)[0].x
assert sum(int(x[i, 0, 0, 0]) for i in range(len(x))) > 0
print(preparing, peak(), x.nbytes)
"""
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-c", code, str(tmp_path / "tiny-64")]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    preparing, reading, size = map(int, done.stdout.split())
    assert size == 100_000 * 64 * 64 * 3
    assert preparing < 0.5 * size
    assert reading < 1.5 * size


@pytest.mark.parametrize("pieces", [0, 1, 3])
def test_more_or_fewer_samples_than_labels(tmp_path, pieces):
    raw = generated(2, lambda: iter([np.zeros((1, 64, 64, 3), np.uint8)] * pieces))
    with pytest.raises(DataError, match=f"{pieces} samples but 2 labels"):
        write_cache(tmp_path / "a", "tiny", raw, (tmp_path / "file.zip",))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_features_must_be_finite(tmp_path, value):
    block = np.array([[1.0, value]], np.float32)
    raw = Raw((1, 2), "float32", lambda: iter([block]), np.zeros(1, np.int64), ("a",), np.zeros(1, bool))
    with pytest.raises(DataError, match="file: NaN or infinite values among samples 0 to 0"):
        write_cache(tmp_path / "a", "b", raw, (tmp_path / "file",))
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_reported_and_leaves_no_files(tmp_path):
    def pieces():
        yield np.zeros((1, 64, 64, 3), np.uint8)
        raise OSError(28, "No space left on device")

    with pytest.raises(DataError, match="the disk is full"):
        write_cache(tmp_path / "a", "tiny", generated(2, pieces), ())
    assert not list(tmp_path.iterdir())


def test_an_interrupted_write_leaves_no_files(tmp_path):
    def pieces():
        yield np.zeros((1, 64, 64, 3), np.uint8)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_cache(tmp_path / "a", "tiny", generated(2, pieces), ())
    assert not list(tmp_path.iterdir())
