"""MATLAB's format 5, as Digits-Five's files have it: named arrays of real numbers, compressed or not.

Everything else in a file (structures, cells, text, sparse and complex arrays) is skipped. The reader is bounded by the
data that is there; scipy's follows pointers of a damaged file out of its memory.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfl_fast.data import bounded
from pfl_fast.errors import damaged

HEADER = 128
MATRIX, COMPRESSED = 14, 15
DTYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
NUMERIC = range(6, 16)  # classes of full arrays of numbers
COMPLEX = 0x0800


def read_mat(file: Path, names: tuple[str, ...]) -> list[NDArray[Any]]:
    """Reads variables in the order of ``names``; raises if one is missing."""
    data = bounded.read_file(file)
    found: dict[str, NDArray[Any]] = {}
    with bounded.reading(file, ".mat file of format 5"):
        if data[124:128] not in (b"\x00\x01IM", b"\x01\x00MI"):
            raise ValueError("another header")
        order = "<" if data[126:128] == b"IM" else ">"
        for kind, content in _elements(memoryview(data)[HEADER:], order):
            if kind == COMPRESSED:
                kind, content = next(_elements(_decompressed(content, file, len(data)), order), (0, content))
            if kind == MATRIX and (variable := _variable(content, order)) and variable[0] in names:
                found[variable[0]] = variable[1]
    if missing := [name for name in names if name not in found]:
        raise damaged(file, f"no variable {missing[0]} of numbers in it; this is another file of that name")
    return [found[name] for name in names]


def _elements(data: memoryview, order: str) -> Iterator[tuple[int, memoryview]]:
    """Yields type and content of consecutive elements, which are padded to eight bytes unless compressed."""
    at = 0
    while at + 8 <= len(data):
        kind, size = struct.unpack_from(f"{order}II", data, at)
        if kind >> 16:  # a small element: its size in the upper half, its content in place of the size
            kind, size, begin, end = kind & 0xFFFF, kind >> 16, at + 4, at + 8
        else:
            begin = at + 8
            end = begin + size + (0 if kind == COMPRESSED else -size % 8)
        if begin + size > min(end, len(data)):
            raise ValueError(f"an element of {size} bytes, {len(data) - begin} are left")
        yield kind, data[begin : begin + size]
        at = end


def _decompressed(content: memoryview, file: Path, size: int) -> memoryview:
    most = bounded.limit(size)
    data = zlib.decompressobj().decompress(content, most + 1)
    bounded.check_claim(file, len(data), size)
    return memoryview(data)


def _variable(content: memoryview, order: str) -> tuple[str, NDArray[Any]] | None:
    """Returns name and array of a matrix element, None unless it is a full array of real numbers."""
    elements = _elements(content, order)
    flags, dimensions, name = (bytes(next(elements, (0, content[:0]))[1]) for _ in range(3))
    (bits,) = struct.unpack_from(f"{order}I", flags)
    kind, values = next(elements, (0, content[:0]))
    if bits & 0xFF not in NUMERIC or bits & COMPLEX or kind not in DTYPES:
        return None
    shape = np.frombuffer(dimensions, f"{order}u4").tolist()
    array = np.frombuffer(values, order + DTYPES[kind])
    if len(array) != math.prod(shape) or len(shape) > 8:
        raise ValueError(f"{len(array)} values for shape {tuple(shape)}")
    return name.decode("latin1"), array.reshape(shape, order="F")
