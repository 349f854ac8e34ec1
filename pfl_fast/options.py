"""Options as frozen dataclasses: each field knows its default, what it does and what it may be."""

from __future__ import annotations

import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import isinf
from types import NoneType, UnionType
from typing import Any

from pfl_fast.errors import did_you_mean

WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def option(
    default: Any, help: str, choices: Sequence[Any] = (), minimum: float | None = None, maximum: float | None = None
) -> Any:
    """A field of a dataclass of options."""
    limits = {"choices": tuple(choices), "minimum": minimum, "maximum": maximum}
    return field(default=default, metadata={"help": help, **limits})


@dataclass(frozen=True)
class Described:
    """One option, for a person to read."""

    name: str
    type: str
    default: Any
    help: str
    choices: tuple[Any, ...]


def describe(options: type) -> list[Described]:
    """All options of a dataclass, in its order."""
    hints = typing.get_type_hints(options)
    return [
        Described(f.name, _type_name(hints[f.name]), f.default, f.metadata["help"], f.metadata["choices"])
        for f in fields(options)
    ]


def convert(options: type, values: Mapping[str, Any], errors: list[str], source: str = "") -> dict[str, Any]:
    """Values as the dataclass wants them; what cannot be is added to ``errors``, one line each.

    Text is read as the field's type, so that ``--set lam=5`` and a number from a file come to the same.

    Args:
        options: a dataclass whose fields were made by :func:`option`.
        values: by name.
        errors: appended to.
        source: where the values come from, to begin a line with.
    """
    known = {f.name: f for f in fields(options)}
    hints = typing.get_type_hints(options)
    result = {}
    for name, value in values.items():
        if name not in known:
            errors.append(f"{source}{unknown(name, known)}")
            continue
        try:
            converted = _as(hints[name], value)
            _check_limits(known[name].metadata, converted)
        except ValueError as error:
            errors.append(f"{source}{name}: {error}, got {value!r}")
        else:
            result[name] = converted
    return result


def plain(value: Any) -> Any:
    """A value as files hold it: a list for a tuple, and for a function where it is to be found.

    >>> plain((1, 2)), plain(plain), plain("text")
    ([1, 2], 'pfl_fast.options:plain', 'text')
    """
    if callable(value):
        return f"{value.__module__}:{getattr(value, '__qualname__', type(value).__qualname__)}"
    return list(value) if isinstance(value, tuple) else value


def unknown(name: str, known: Iterable[str]) -> str:
    """Says that there is no such option, and what may have been meant."""
    names = list(known)
    listed = f"; there are {', '.join(names)}" if names and len(names) <= 20 else ""
    return f"no option {name!r}{did_you_mean(name, names) or listed}"


def _as(hint: Any, value: Any) -> Any:
    members = typing.get_args(hint) if isinstance(hint, UnionType) or typing.get_origin(hint) is typing.Union else ()
    if NoneType in members:
        if value is None or value in ("none", "None", ""):
            return None
        return _as(next(m for m in members if m is not NoneType), value)
    if members:
        fits = any(isinstance(value, typing.get_origin(member) or member) for member in members)
        return value if fits else _as(members[0], value)
    if typing.get_origin(hint) is tuple:
        items = value.split(",") if isinstance(value, str) else value
        if not isinstance(items, (list, tuple)):
            raise ValueError("must be a list")
        return tuple(_as(typing.get_args(hint)[0], item.strip() if isinstance(item, str) else item) for item in items)
    return _CONVERTERS[hint](value)


def _bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    word = str(value).lower()
    if word not in WORDS:
        raise ValueError("must be true or false")
    return WORDS[word]


def _int(value: Any) -> int:
    if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
        raise ValueError("must be an integer")
    try:
        return int(value)
    except (TypeError, ValueError):
        raise ValueError("must be an integer") from None


def _float(value: Any) -> float:
    try:
        return float("no number" if isinstance(value, bool) else value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError("must be a number") from None


def _str(value: Any) -> str:
    match value:
        case str():
            return value
        case _:
            raise ValueError("must be text")


_CONVERTERS = {bool: _bool, int: _int, float: _float, str: _str}


def _check_limits(metadata: Mapping[str, Any], value: Any) -> None:
    if metadata["choices"] and value not in metadata["choices"]:
        hint = did_you_mean(value, filter(None, metadata["choices"])) if isinstance(value, str) else ""
        raise ValueError(f"must be one of {', '.join(map(str, metadata['choices']))}{hint}")
    for number in value if isinstance(value, tuple) else (value,):
        if isinstance(number, bool) or not isinstance(number, (int, float)):
            continue
        if number != number:
            raise ValueError("must be a number, not NaN")
        if isinf(number):
            raise ValueError("must be finite")
        if metadata["minimum"] is not None and number < metadata["minimum"]:
            raise ValueError(f"must be at least {metadata['minimum']:g}")
        if metadata["maximum"] is not None and number > metadata["maximum"]:
            raise ValueError(f"must be at most {metadata['maximum']:g}")


def _type_name(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint)
