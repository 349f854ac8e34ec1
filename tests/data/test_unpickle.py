import io
import os
import pickle
import pickletools

import numpy as np
import pytest

from pfl_fast.data.unpickle import load_plain
from pfl_fast.errors import DataError


def plain(data):
    return load_plain(data, "some/file.pkl")


def same(a, b):
    if isinstance(a, np.ndarray):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        return a.tolist() == b.tolist()
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    return type(a) is type(b) and a == b


PLAIN = [
    {"x": np.arange(7, dtype=np.float32), b"data": np.zeros((0, 3), np.uint8), "n": 3},
    [1, 2.5, True, None, "text", b"\x00\xff", (1, (2,))],
    np.asfortranarray(np.arange(6, dtype=">i4").reshape(2, 3)),
    np.array([([1, 2], 2), ([3], 1)], dtype=object),
    np.array(["ab", "c"]),
    np.int64(-5),
    np.float32(0.5),
    np.array({"x": np.ones((1, 1), np.float16)}, dtype=object),
    {},
]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("value", PLAIN, ids=range(len(PLAIN)))
def test_plain_data_is_read(value, protocol):
    data = pickle.dumps(value, protocol)
    assert same(pickle.loads(data), plain(data))


def test_python_2_strings_and_the_old_name_of_numpy():
    """As in CIFAR's tars: protocol 2, byte strings for text and data, numpy.core."""
    array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR(I1\n(I2\nt"
    array += b"cnumpy\ndtype\n(S'u1'\nI0\nI1\ntR(I3\nS'|'\nNNNI-1\nI-1\nI0\ntbI00\nS'\\x05\\xff'\ntb."
    result = plain(b"(S'data'\n" + array[:-1] + b"S'labels'\n(I1\nI2\nld.")
    assert result["data"].tolist() == [5, 255]
    assert result["labels"] == [1, 2]


class Runs:
    def __init__(self, function, *args):
        self.call = (function, args)

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (Runs(os.system, "touch owned"), "system"),
        (Runs(eval, "1+1"), "eval"),
        (np.array([Runs(os.getcwd)], dtype=object), "getcwd"),
        ({"x": np.ma.masked_array([1])}, "numpy.ma"),
        (np.random.default_rng(0), "numpy.random"),
        ({1, 2}, "set"),
        (bytearray(b"x"), "bytearray"),
        (np.ndarray, "Array"),
    ],
    ids=["system", "eval", "call in an array", "masked array", "generator", "set", "bytearray", "class"],
)
@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_other_objects_are_refused_by_name(value, named, protocol, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=rf"some/file.pkl: refused.*{named}"):
        plain(pickle.dumps(value, protocol))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "call",
    [
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I1000000000000\ntS'b'\ntR.",
        b"cnumpy\ndtype\n(cnumpy\nndarray\ntR.",
        b"cnumpy\nndarray\n(I5\ntR.",
        b"c_codecs\nencode\n(S'x'\nS'rot13'\ntR.",
        b"cnumpy.core.multiarray\nscalar\n(cnumpy\ndtype\n(S'i8'\ntRS'abc'\ntR.",
        b"cnumpy\ndtype\n(S'O'\ntR}S'a'\nI1\nsb.",
        b"c_codecs\nencode\n(N}S'a'\nI1\nstb.",
    ],
)
def test_allowed_names_with_unusual_arguments_are_refused(call):
    pickletools.dis(call, out=io.StringIO())
    with pytest.raises(DataError, match="not a readable pickle"):
        plain(call)


def test_truncated_anywhere_is_an_error():
    data = pickle.dumps({"x": np.arange(3), "y": [1, "a"]}, 2)
    for end in range(len(data)):
        with pytest.raises(DataError, match=r"some/file\.pkl"):
            plain(data[:end])


def test_recursive_data_is_read():
    value = []
    value.append(value)
    result = plain(pickle.dumps(value))
    assert result[0] is result


def test_reads_only_one_object():
    file = io.BytesIO(pickle.dumps(1) + pickle.dumps(2))
    assert [load_plain(file, "f"), load_plain(file, "f")] == [1, 2]
