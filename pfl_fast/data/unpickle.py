"""Reads pickles of plain data without executing code.

A pickle is a program for a small machine that may call any function and change the state of any object. This machine
knows only the instructions that build plain data. The names that pickles of NumPy arrays use stand for themselves: a
dtype and an array are collected as plain values (:class:`_Dtype`, :class:`_Array`) and checked, before
``numpy.frombuffer`` makes the array from the bytes of the file. No object of NumPy or Python is ever given a state.
"""

from __future__ import annotations

import codecs
import math
import pickle
import re
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from pfl_fast.data.bounded import checked
from pfl_fast.errors import DataError, damaged

PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic)
KEYS = (bool, int, float, str, bytes, type(None), np.generic)  # hashing nested tuples can take exponential time
DEPTH = 64  # lists and tuples within each other
SHARED = 16  # values per byte of the pickle, with lists that occur twice counted twice
_PLAIN_DTYPE = re.compile(r"\?|[bhilqBHILQefd]|b1|[iu][1248]|f[248]|c(8|16)|[SU][1-9][0-9]{0,5}")
_MARK = object()


class _RefusedError(Exception):
    """The pickle names an object that is not plain data."""


class _Global:
    """A function or class that the pickle names; ``make`` replaces calls of it."""

    def __init__(self, name: str, make: Callable[..., object] | None = None) -> None:
        self.name, self.make = name, make


class _Dtype:
    """A dtype: its text, such as ``f4``, and its byte order."""

    def __init__(self, spec: object, _align: object = False, _copy: object = True) -> None:
        if not isinstance(spec, str) or not (_PLAIN_DTYPE.fullmatch(spec) or spec in ("O", "O4", "O8")):
            raise ValueError(f"dtype {spec!r}")
        self.objects, self.spec, self.order = spec.startswith("O"), spec, "="

    def set_state(self, state: Any) -> object:
        _version, order, subarray, names, fields, *_ = state
        if order not in ("<", ">", "|", "=") or any(part is not None for part in (subarray, names, fields)):
            raise ValueError(f"a dtype with state {state!r:.80}")
        self.order = order
        return self

    def real(self) -> np.dtype[Any]:
        return np.dtype(object if self.objects else self.spec).newbyteorder(self.order)  # type: ignore[arg-type]

    def array(self, data: Any, shape: Any, order: str) -> np.ndarray[Any, Any]:
        shape = tuple(shape)
        if not all(type(length) is int and length >= 0 for length in shape) or len(shape) > 32:
            raise ValueError(f"an array of shape {shape!r:.80}")
        if self.objects:
            result = np.empty(len(data), object)
            for place, value in enumerate(data if type(data) is list else _fail("objects without a list")):
                result[place] = value
        else:
            data = data.encode("latin1") if isinstance(data, str) else data
            if not isinstance(data, (bytes, bytearray)) or len(data) != math.prod(shape) * self.real().itemsize:
                raise ValueError(f"an array of {self.spec} and shape {shape!r:.80} with other data")
            result = checked(np.frombuffer(bytes(data), self.real()))
            result = result.astype(result.dtype.newbyteorder("="), copy=False)
        return result.reshape(shape, order=order)  # type: ignore[call-overload,no-any-return]


class _Array:
    """An array of which only the name is known."""

    def __init__(self, subtype: object, shape: object, _dtype: object) -> None:
        if subtype is not _GLOBALS["numpy", "ndarray"] or shape not in ((0,), 0):
            raise ValueError("an array that NumPy would not have written")
        self.memo_keys: list[int] = []

    def set_state(self, state: Any) -> object:
        *_version, shape, dtype, fortran, data = state
        return _dtype(dtype).array(data, shape, "F" if fortran else "C")


def _fail(what: str) -> Any:
    raise ValueError(what)


def _dtype(value: object) -> _Dtype:
    return value if isinstance(value, _Dtype) else _fail("an array without dtype")


def _scalar(dtype: object, data: object) -> object:
    return _fail("a scalar object") if _dtype(dtype).objects else _dtype(dtype).array(data, (1,), "C")[0]


def _from_buffer(data: object, dtype: object, shape: object, order: object, axes: Any = None) -> object:
    if _dtype(dtype).objects or order not in ("C", "F", "K"):
        raise ValueError("a buffer that NumPy would not have written")
    array = _dtype(dtype).array(data, shape, "C" if order == "K" else str(order))
    return array if axes is None else array.transpose(axes)


def _encode(text: object, encoding: object) -> bytes:
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise ValueError("bytes that Python would not have written")
    return text.encode("latin1")


def _no_bytes() -> bytes:
    return b""


_GLOBALS = {
    ("numpy", "ndarray"): _Global("ndarray"),
    ("numpy", "dtype"): _Global("dtype", _Dtype),
    ("_codecs", "encode"): _Global("encode", _encode),
    ("builtins", "bytes"): _Global("bytes", _no_bytes),
    ("__builtin__", "bytes"): _Global("bytes", _no_bytes),
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _Global("reconstruct", _Array) for core in ("core", "_core")},
    **{(f"numpy.{core}.multiarray", "scalar"): _Global("scalar", _scalar) for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _Global("frombuffer", _from_buffer) for core in ("core", "_core")},
}


def load_plain(data: bytes, name: str) -> object:
    """Reads a pickled object.

    Args:
        data: content of the file; bytes after the pickle are ignored.
        name: name for error messages, usually the path.

    Returns:
        NumPy arrays, dicts, lists, tuples, numbers, str, bytes and None, nested in any way. Strings of Python 2 are
        decoded as Latin-1.

    Raises:
        DataError: if the pickle names anything else (which is not executed), or is broken.

    >>> load_plain(pickle.dumps({"y": [1, 2]}), "labels.pkl")
    {'y': [1, 2]}
    >>> load_plain(pickle.dumps(print), "labels.pkl")
    Traceback (most recent call last):
    pfl_fast.errors.DataError: labels.pkl: refused, its pickle asks for builtins.print; only arrays, dicts, lists, ...
    """
    try:
        result = _Machine(data).run()
        _check_plain(result, SHARED * len(data))
    except _RefusedError as error:
        raise DataError(
            f"{name}: refused, its pickle asks for {error}; only arrays, dicts, lists, tuples, numbers, str and bytes "
            "are read, because anything else could run code. Convert the file where you trust it"
        ) from None
    except (ValueError, TypeError, LookupError, ArithmeticError, MemoryError, struct.error) as error:
        raise damaged(name, f"not a readable pickle ({error}); it is truncated or corrupt") from None
    return result


class _Machine:
    """Runs a pickle: ``stack`` and ``memo`` hold plain data, and the stand-ins above until they are complete."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> object:
        while (code := self.take(1)) != pickle.STOP:
            if code not in _INSTRUCTIONS:
                raise _RefusedError(f"instruction {code!r}")
            _INSTRUCTIONS[code](self)
        return self.stack.pop()

    def take(self, count: int) -> bytes:
        if not 0 <= count <= len(self.data) - self.at:
            raise ValueError(f"{count} bytes expected, {len(self.data) - self.at} left")
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def line(self) -> str:
        end = self.data.index(b"\n", self.at)
        return self.take(end + 1 - self.at)[:-1].decode("latin1")

    def sized(self, form: str) -> bytes:
        return self.take(self.number(form))

    def push(self, value: object) -> None:
        self.stack.append(value)

    def keep(self, key: int) -> None:
        self.memo[key] = self.stack[-1]
        if isinstance(self.stack[-1], _Array):
            self.stack[-1].memo_keys.append(key)

    def since_mark(self) -> list[Any]:
        place = len(self.stack) - 1
        while self.stack[place] is not _MARK:
            place -= 1
            if place < 0:
                raise ValueError("no mark")
        values = self.stack[place + 1 :]
        del self.stack[place:]
        return values

    def append(self, values: list[Any]) -> None:
        _expect(self.stack[-1], list).extend(values)

    def set_items(self, values: list[Any]) -> None:
        target = _expect(self.stack[-1], dict)
        for key, value in zip(values[::2], values[1::2], strict=True):
            target[key if isinstance(key, KEYS) else _fail("a key that is neither number nor text")] = value

    def dict(self) -> None:
        items = self.since_mark()
        self.push({})
        self.set_items(items)

    def find(self, module: object, name: object) -> None:
        if (module, name) not in _GLOBALS:
            raise _RefusedError(f"{module}.{name}")
        self.push(_GLOBALS[module, name])  # type: ignore[index]

    def call(self) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        if not isinstance(function, _Global) or function.make is None or type(arguments) is not tuple:
            raise ValueError("a call that NumPy would not have written")
        self.push(function.make(*arguments))

    def set_state(self) -> None:
        state, target = self.stack.pop(), self.stack.pop()
        if not isinstance(target, (_Dtype, _Array)) or type(state) is not tuple:
            raise ValueError(f"a state for a {type(target).__name__.strip('_')}")
        complete = target.set_state(state)
        self.push(complete)
        if isinstance(target, _Array):
            self.memo.update(dict.fromkeys(target.memo_keys, complete))


def _expect(value: object, kind: type) -> Any:
    return value if type(value) is kind else _fail(f"a {type(value).__name__.strip('_')} instead of a {kind.__name__}")


def _bool_or_int(text: str) -> object:
    return {"00": False, "01": True}[text] if text in ("00", "01") else int(text)


def _quoted(text: str) -> str:
    if len(text) < 2 or text[0] != text[-1] or text[0] not in "'\"":
        raise ValueError("text without quotation marks")
    return codecs.escape_decode(text[1:-1].encode("latin1"))[0].decode("latin1")


def _utf8(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


def _long(data: bytes) -> int:
    return int.from_bytes(data, "little", signed=True)


_INSTRUCTIONS: dict[bytes, Callable[[_Machine], object]] = {
    pickle.PROTO: lambda m: m.take(1),
    pickle.FRAME: lambda m: m.take(8),
    pickle.MARK: lambda m: m.push(_MARK),
    pickle.POP: lambda m: m.stack.pop(),
    pickle.POP_MARK: lambda m: m.since_mark(),
    pickle.NONE: lambda m: m.push(None),
    pickle.NEWTRUE: lambda m: m.push(True),
    pickle.NEWFALSE: lambda m: m.push(False),
    pickle.INT: lambda m: m.push(_bool_or_int(m.line())),
    pickle.BININT: lambda m: m.push(m.number("<i")),
    pickle.BININT1: lambda m: m.push(m.number("<B")),
    pickle.BININT2: lambda m: m.push(m.number("<H")),
    pickle.LONG: lambda m: m.push(int(m.line().removesuffix("L"))),
    pickle.LONG1: lambda m: m.push(_long(m.sized("<B"))),
    pickle.LONG4: lambda m: m.push(_long(m.sized("<i"))),
    pickle.FLOAT: lambda m: m.push(float(m.line())),
    pickle.BINFLOAT: lambda m: m.push(m.number(">d")),
    pickle.STRING: lambda m: m.push(_quoted(m.line())),
    pickle.BINSTRING: lambda m: m.push(m.sized("<i").decode("latin1")),
    pickle.SHORT_BINSTRING: lambda m: m.push(m.sized("<B").decode("latin1")),
    pickle.UNICODE: lambda m: m.push(m.line().encode("latin1").decode("raw-unicode-escape")),
    pickle.BINUNICODE: lambda m: m.push(_utf8(m.sized("<I"))),
    pickle.SHORT_BINUNICODE: lambda m: m.push(_utf8(m.sized("<B"))),
    pickle.BINUNICODE8: lambda m: m.push(_utf8(m.sized("<Q"))),
    pickle.BINBYTES: lambda m: m.push(m.sized("<I")),
    pickle.SHORT_BINBYTES: lambda m: m.push(m.sized("<B")),
    pickle.BINBYTES8: lambda m: m.push(m.sized("<Q")),
    pickle.BYTEARRAY8: lambda m: m.push(bytearray(m.sized("<Q"))),
    pickle.EMPTY_TUPLE: lambda m: m.push(()),
    pickle.TUPLE: lambda m: m.push(tuple(m.since_mark())),
    pickle.TUPLE1: lambda m: m.push((m.stack.pop(),)),
    pickle.TUPLE2: lambda m: m.push((m.stack.pop(), m.stack.pop())[::-1]),
    pickle.TUPLE3: lambda m: m.push((m.stack.pop(), m.stack.pop(), m.stack.pop())[::-1]),
    pickle.EMPTY_LIST: lambda m: m.push([]),
    pickle.LIST: lambda m: m.push(m.since_mark()),
    pickle.APPEND: lambda m: m.append([m.stack.pop()]),
    pickle.APPENDS: lambda m: m.append(m.since_mark()),
    pickle.EMPTY_DICT: lambda m: m.push({}),
    pickle.DICT: lambda m: m.dict(),
    pickle.SETITEM: lambda m: m.set_items([m.stack.pop(), m.stack.pop()][::-1]),
    pickle.SETITEMS: lambda m: m.set_items(m.since_mark()),
    pickle.PUT: lambda m: m.keep(int(m.line())),
    pickle.BINPUT: lambda m: m.keep(m.number("<B")),
    pickle.LONG_BINPUT: lambda m: m.keep(m.number("<I")),
    pickle.MEMOIZE: lambda m: m.keep(len(m.memo)),
    pickle.GET: lambda m: m.push(m.memo[int(m.line())]),
    pickle.BINGET: lambda m: m.push(m.memo[m.number("<B")]),
    pickle.LONG_BINGET: lambda m: m.push(m.memo[m.number("<I")]),
    pickle.GLOBAL: lambda m: m.find(m.line(), m.line()),
    pickle.STACK_GLOBAL: lambda m: m.find(*(m.stack.pop(), m.stack.pop())[::-1]),
    pickle.REDUCE: lambda m: m.call(),
    pickle.BUILD: lambda m: m.set_state(),
    pickle.EMPTY_SET: lambda _: _refuse("a set"),
    pickle.FROZENSET: lambda _: _refuse("a frozenset"),
}


def _refuse(what: str) -> None:
    raise _RefusedError(what)


def _check_plain(root: object, most: int) -> None:
    """Raises for stand-ins in the result, and for lists that, written out, hold more than ``most`` values."""
    sizes: dict[int, int] = {}  # of every list by its id; 0 while its content is being counted
    waiting = [(root, False)]
    open_ = 0
    while waiting:
        value, counted = waiting.pop()
        inner = _content(value)
        if counted:
            open_ -= 1
            sizes[id(value)] = sum(sizes.get(id(item), _length(item)) for item in inner)
            if sizes[id(value)] > most:
                raise ValueError(f"lists that occur many times and stand for more than {most} values")
        elif inner and id(value) not in sizes:
            open_ += 1
            if open_ > DEPTH:
                raise ValueError(f"lists nested deeper than {DEPTH}")
            sizes[id(value)] = 0
            waiting.append((value, True))
            waiting += [(item, False) for item in inner if not isinstance(item, PLAIN)]
        elif inner and sizes[id(value)] == 0:
            raise ValueError("a list that contains itself")


def _length(value: object) -> int:
    return value.size if isinstance(value, np.ndarray) else 1


def _content(value: object) -> list[Any]:
    if isinstance(value, PLAIN):
        return []
    if isinstance(value, np.ndarray):
        return list(value.ravel()) if value.dtype.hasobject else []
    if type(value) is dict:
        return [*value.keys(), *value.values()]
    if type(value) in (list, tuple):
        return list(value)  # type: ignore[call-overload,no-any-return]
    raise _RefusedError(value.name if isinstance(value, _Global) else type(value).__name__.strip("_"))
