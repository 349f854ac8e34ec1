"""Reads files of unknown origin: no file makes the program hold more than a stated multiple of its size."""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from pfl_fast.errors import DataError, PflFastError, damaged

FREE, RATIO = 64 << 20, 100  # bytes that a file of n bytes may decode to: FREE + RATIO * n
FREE_NAMES, FREE_TOKENS = 10_000, 1_000_000  # classes and tokens that a data set may have, if its samples are fewer
CHUNK = 1 << 20
NPY_HEADER = 1 << 20  # bytes


class Readable(Protocol):
    """A decompressed stream."""

    def read(self, size: int, /) -> bytes: ...  # noqa: D102


def limit(size: int) -> int:
    """Returns the number of bytes that a file of ``size`` bytes may decode to."""
    return FREE + RATIO * size


def check_claim(file: object, claimed: int, size: int, what: str = "decoded data") -> None:
    """Raises if a file of ``size`` bytes claims to hold more bytes than :func:`limit` allows."""
    if claimed > limit(size):
        raise DataError(
            f"{file}: refused, it claims {claimed} bytes of {what}; a file of {size} bytes may hold {limit(size)} "
            f"(64 MiB and {RATIO} times its size): corrupt, or made to exhaust memory; delete it and fetch it again"
        )


def check_count(file: object, claimed: int, samples: int, what: str, free: int = FREE_NAMES) -> None:
    """Raises if a file claims more classes or tokens than ``free`` and than its number of samples or tokens."""
    if claimed > max(free, samples):
        raise DataError(
            f"{file}: refused, it claims {claimed} {what}; with {samples} values it may have {max(free, samples)}: "
            "corrupt, or made to exhaust memory; correct its labels, or fetch it again"
        )


def read(stream: Readable, file: object, size: int) -> bytes:
    """Reads a stream that is decompressed from ``size`` bytes of ``file``; raises when it exceeds :func:`limit`."""
    chunks, done = [], 0
    while chunk := stream.read(CHUNK):
        done += len(chunk)
        check_claim(file, done, size)
        chunks.append(chunk)
    return b"".join(chunks)


def open_zip(source: Path | BinaryIO, file: object, size: int) -> tuple[zipfile.ZipFile, list[zipfile.ZipInfo]]:
    """Opens a zip archive of ``size`` bytes; returns it and its files, none of which claims too much."""
    with reading(file, "zip archive"):
        archive = zipfile.ZipFile(source)
        members = [member for member in archive.infolist() if member.filename and not member.is_dir()]
        for member in members:
            if member.compress_size > size:  # zipfile takes as much memory
                raise ValueError(f"{member.filename} claims {member.compress_size} of its {size} bytes")
            check_claim(f"{file}/{member.filename}", member.file_size, member.compress_size)
    return archive, members


def read_file(file: Path) -> bytes:
    """Reads a regular file; a pipe or a device could block, or never end."""
    with reading(file, "file"):
        if file.exists() and not file.is_file():
            raise DataError(f"{file}: refused, it is not a regular file but a pipe, a device or a folder; remove it")
        return file.read_bytes()


@contextmanager
def reading(file: object, what: str) -> Iterator[None]:
    """Turns every error in its block into a :class:`DataError` that names ``file``, which is no readable ``what``.

    Parsers of damaged files raise errors of nearly every type.
    """
    try:
        yield
    except PflFastError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.strerror:
            raise DataError(f"{file}: cannot be read ({error.strerror}); check the path and its permissions") from error
        problem = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        raise damaged(file, f"not a readable {what} ({problem}); truncated or corrupt") from error


def read_npy(stream: BinaryIO, file: object, size: int) -> NDArray[np.generic]:
    """Reads an array of plain numbers, bools or text in npy format from ``size`` bytes of ``file``.

    Memory follows the data that is there, not the shape in the header.
    """
    shape, fortran, dtype = read_npy_header(stream)
    if dtype.kind not in "biufSU" or not dtype.itemsize:
        raise ValueError(f"an array of {dtype}")
    claimed = math.prod(shape) * dtype.itemsize
    check_claim(file, claimed, size)
    data = read(stream, file, size)
    if len(data) != claimed:
        raise ValueError(f"{len(data)} bytes of data for shape {shape} of {dtype}")
    return checked(np.frombuffer(data, dtype)).reshape(shape, order="F" if fortran else "C")


def map_npy(file: Path, mode: Literal["r", "c"]) -> NDArray[Any]:
    """Maps a file in npy format; a map never takes more memory than the file has bytes.

    Args:
        file: the file.
        mode: ``"r"`` for a read-only array, ``"c"`` for one whose changes do not reach the file.
    """
    with file.open("rb") as stream:
        read_npy_header(stream)
    array: NDArray[Any] = np.load(file, mmap_mode=mode, allow_pickle=False)
    return array


def read_npy_header(stream: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype[np.generic]]:
    """Reads shape, order and dtype from the header of an npy file; objects are allowed here."""
    version = np.lib.format.read_magic(stream)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"npy version {version}")
    if version == (2, 0):  # NumPy allocates the claimed length of the header, up to 4 GiB, before it reads
        length = stream.read(4)
        stream = io.BytesIO(length + stream.read(min(int.from_bytes(length, "little"), NPY_HEADER)))
    shape, fortran, dtype = readers[version](stream)
    if min(shape, default=0) < 0:
        raise ValueError(f"shape {shape}")
    return shape, fortran, dtype


def checked(array: NDArray[np.generic]) -> NDArray[np.generic]:
    """Returns an array made from bytes of a file; raises for text that is not Unicode, makes bools 0 or 1."""
    if array.dtype.kind == "b":
        return np.not_equal(array.view(np.uint8), 0)
    if array.dtype.kind == "U" and array.size and array.view(array.dtype.str[0] + "u4").max() > 0x10FFFF:
        raise ValueError("text that is not Unicode")
    return array


def whole_numbers(values: object, file: object, what: str) -> NDArray[np.int64]:
    """Returns an array or (nested) list of whole numbers as int64; other values raise, none is rounded or cut."""
    array = plain_array(values, file, what)
    with np.errstate(invalid="ignore"):
        whole = array.dtype.kind != "f" or bool(np.all(np.mod(array, 1) == 0))
    # Beyond 2^53, floats do not hold every whole number.
    if not whole or (array.dtype.kind != "b" and array.size and not -(2**53) <= array.min() <= array.max() <= 2**53):
        raise DataError(f"{file}: {what} are not whole numbers (fractions, NaN, text?) up to 2^53: correct the file")
    return array.astype(np.int64)


def plain_array(values: object, file: object, what: str) -> NDArray[np.generic]:
    """Returns an array or (nested) list of plain real numbers as array; anything else raises."""
    if isinstance(values, np.ndarray) and values.dtype.hasobject:
        values = values.tolist()
    try:
        # Text would be padded to its longest entry, and objects converted one by one.
        plain = isinstance(values, np.ndarray) or all(map(_is_number, _leaves(values)))
        array = np.asarray(values if plain else "text")
    except ValueError:  # rows of different lengths
        array = np.asarray("rows")
    if array.dtype.kind not in "biuf":
        raise DataError(f"{file}: {what} are not real numbers in rows of equal length: correct the file")
    return array


def _leaves(values: object) -> Iterator[object]:
    waiting: list[object] = [values]
    while waiting:
        value = waiting.pop()
        if isinstance(value, (list, tuple)):
            waiting += value
        else:
            yield value


def _is_number(value: object) -> bool:
    kinds = "biuf"
    return isinstance(value, (bool, int, float)) or (
        isinstance(value, (np.generic, np.ndarray)) and value.dtype.kind in kinds
    )


def total_size(files: Iterable[Path]) -> int:
    """Returns the size of all files together."""
    return sum(file.stat().st_size for file in files)
