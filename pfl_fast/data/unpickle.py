"""Reads pickles of plain data without executing code.

A pickle may call any function that it names. Here it can name only the functions that pickles of NumPy arrays use, and
gets the replacements below, which refuse unusual arguments.
"""

from __future__ import annotations

import pickle
from typing import Any, BinaryIO

import numpy as np

from pfl_fast.errors import DataError, damaged

PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic)


class _Array:
    """Replaces ``numpy.ndarray``; it cannot be called, so that it cannot allocate memory."""

    __slots__ = ()


class _Reconstruct:
    """Replaces ``numpy._core.multiarray._reconstruct``, which makes an empty array to be filled."""

    __slots__ = ()

    def __call__(self, subtype: object, shape: object, _dtype: object) -> np.ndarray[Any, Any]:
        if not isinstance(subtype, _Array) or shape not in ((0,), 0):
            raise pickle.UnpicklingError("an array that NumPy would not have written")
        return np.ndarray((0,), "b")


class _Dtype:
    """Replaces ``numpy.dtype``; always copies, so that a pickle cannot change NumPy's own dtypes."""

    __slots__ = ()

    def __call__(self, spec: object, align: object = False, copy: object = True) -> np.dtype[Any]:
        del copy
        if not isinstance(spec, str):
            raise pickle.UnpicklingError("a dtype that NumPy would not have written")
        return np.dtype(spec, align=bool(align), copy=True)


class _Scalar:
    """Replaces ``numpy._core.multiarray.scalar``, which makes one number."""

    __slots__ = ()

    def __call__(self, dtype: object, data: object) -> Any:
        if not isinstance(dtype, np.dtype) or dtype.hasobject:
            raise pickle.UnpicklingError("a scalar that NumPy would not have written")
        raw = data.encode("latin1") if isinstance(data, str) else data
        if not isinstance(raw, bytes) or len(raw) != dtype.itemsize:
            raise pickle.UnpicklingError("a scalar of the wrong size")
        return np.frombuffer(raw, dtype)[0]


class _FromBuffer:
    """Replaces ``numpy._core.numeric._frombuffer``, which makes the arrays of protocol 5."""

    __slots__ = ()

    def __call__(self, data: Any, dtype: object, shape: Any, order: Any) -> np.ndarray[Any, Any]:
        if not isinstance(dtype, np.dtype) or dtype.hasobject or not isinstance(data, (bytes, bytearray)):
            raise pickle.UnpicklingError("a buffer that NumPy would not have written")
        return np.frombuffer(data, dtype).reshape(shape, order=order)


class _Encode:
    """Replaces ``_codecs.encode``, which makes the bytes of protocol 2."""

    __slots__ = ()

    def __call__(self, text: object, encoding: object) -> bytes:
        if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
            raise pickle.UnpicklingError("bytes that Python would not have written")
        return text.encode("latin1")


class _Bytes:
    """Replaces ``bytes``, which makes the empty bytes of protocol 2."""

    __slots__ = ()

    def __call__(self) -> bytes:
        return b""


_GLOBALS: dict[tuple[str, str], object] = {
    ("numpy", "ndarray"): _Array(),
    ("numpy", "dtype"): _Dtype(),
    ("_codecs", "encode"): _Encode(),
    ("builtins", "bytes"): _Bytes(),
    ("__builtin__", "bytes"): _Bytes(),
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _Reconstruct() for core in ("core", "_core")},
    **{(f"numpy.{core}.multiarray", "scalar"): _Scalar() for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _FromBuffer() for core in ("core", "_core")},
}


class _RefusedError(Exception):
    """The pickle names an object that is not plain data."""


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> Any:
        try:
            return _GLOBALS[module_name, global_name]
        except KeyError:
            raise _RefusedError(f"{module_name}.{global_name}") from None


def load_plain(file: BinaryIO, name: str) -> object:
    """Reads one pickled object from the current position of ``file``.

    Args:
        file: binary file.
        name: name for error messages, usually the path.

    Returns:
        NumPy arrays, dicts, lists, tuples, numbers, str, bytes and None, nested in any way. Strings of Python 2 are
        decoded as Latin-1.

    Raises:
        DataError: if the pickle names anything else (which is not executed), or is broken.

    >>> import io
    >>> load_plain(io.BytesIO(pickle.dumps({"y": [1, 2]})), "labels.pkl")
    {'y': [1, 2]}
    >>> load_plain(io.BytesIO(pickle.dumps(print)), "labels.pkl")
    Traceback (most recent call last):
    pfl_fast.errors.DataError: labels.pkl: refused, its pickle asks for builtins.print; only arrays, dicts, lists, ...
    """
    try:
        result = _PlainUnpickler(file, encoding="latin1").load()
        _check_plain(result)
    except _RefusedError as error:
        raise DataError(
            f"{name}: refused, its pickle asks for {error}; only arrays, dicts, lists, tuples, numbers, str and bytes "
            "are read, because anything else could run code. Convert the file where you trust it"
        ) from None
    except (
        pickle.UnpicklingError, EOFError, ValueError, TypeError, AttributeError, LookupError, ArithmeticError,
        ImportError, MemoryError, RecursionError, SystemError,
    ) as error:  # fmt: skip
        raise damaged(name, f"not a readable pickle ({error}); it is truncated or corrupt") from None
    return result


def _check_plain(root: object) -> None:
    """Raises for objects that opcodes build without naming them (sets, the replacements themselves)."""
    waiting, seen = [root], set()
    while waiting:
        value = waiting.pop()
        if isinstance(value, PLAIN):
            continue
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, np.ndarray):
            waiting += value.ravel().tolist() if value.dtype.hasobject else []
        elif type(value) is dict:
            waiting += [*value.keys(), *value.values()]
        elif type(value) in (list, tuple):
            waiting += value  # type: ignore[arg-type]
        else:
            raise _RefusedError(type(value).__name__.strip("_"))
