"""Options as frozen dataclasses: each field has a default, a help text, and choices or limits."""

from __future__ import annotations

import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import isinf
from types import NoneType, UnionType
from typing import Any

from pfl_fast.errors import did_you_mean

BOOLEANS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def option(
    default: Any, help: str, choices: Sequence[Any] = (), minimum: float | None = None, maximum: float | None = None
) -> Any:
    """Returns a dataclass field for an option.

    Args:
        default: default value.
        help: description, shown by ``--help`` and ``pfl-fast methods``.
        choices: allowed values; empty: any.
        minimum: smallest allowed number, or of each number of a tuple.
        maximum: largest allowed number, or of each number of a tuple.
    """
    limits = {"choices": tuple(choices), "minimum": minimum, "maximum": maximum}
    return field(default=default, metadata={"help": help, **limits})


@dataclass(frozen=True)
class OptionInfo:
    """Description of one option."""

    name: str
    type: str
    default: Any
    help: str
    choices: tuple[Any, ...]


def describe(options: type) -> list[OptionInfo]:
    """Returns descriptions of all options of a dataclass, in the order of its fields."""
    hints = typing.get_type_hints(options)
    return [
        OptionInfo(f.name, _type_name(hints[f.name]), f.default, f.metadata["help"], f.metadata["choices"])
        for f in fields(options)
    ]


def convert(options: type, values: Mapping[str, Any], errors: list[str]) -> dict[str, Any]:
    """Converts values to the types of the dataclass and checks choices and limits.

    Text is parsed as the field's type: ``--set lam=5`` and a number in a file give the same value.

    Args:
        options: dataclass whose fields were made by :func:`option`.
        values: values by name of the option.
        errors: list to which a line is appended for each invalid value.
    """
    known = {f.name: f for f in fields(options)}
    hints = typing.get_type_hints(options)
    result = {}
    for name, value in values.items():
        if name not in known:
            errors.append(unknown(name, known))
            continue
        try:
            converted = _to_type(hints[name], value)
            _check_limits(known[name].metadata, converted)
        except ValueError as error:
            errors.append(f"{name}: {error}, got {value!r}")
        else:
            result[name] = converted
    return result


def plain(value: Any) -> Any:
    """Returns a value as written to files: a list for a tuple, ``"module:name"`` for a function.

    >>> plain((1, 2)), plain(plain), plain("text")
    ([1, 2], 'pfl_fast.options:plain', 'text')
    """
    if callable(value):
        return f"{value.__module__}:{getattr(value, '__qualname__', type(value).__qualname__)}"
    return list(value) if isinstance(value, tuple) else value


def unknown(name: str, known: Iterable[str]) -> str:
    """Returns an error message about an unknown option, with a similar name or all names."""
    names = list(known)
    listed = f"; known options: {', '.join(names)}" if names and len(names) <= 20 else ""
    return f"no option {name!r}{did_you_mean(name, names) or listed}"


def _to_type(hint: Any, value: Any) -> Any:
    members = typing.get_args(hint) if isinstance(hint, UnionType) or typing.get_origin(hint) is typing.Union else ()
    if NoneType in members:
        if value is None or value in ("none", "None", ""):
            return None
        return _to_type(next(m for m in members if m is not NoneType), value)
    if members:
        has_type = any(isinstance(value, typing.get_origin(member) or member) for member in members)
        return value if has_type else _to_type(members[0], value)
    if typing.get_origin(hint) is tuple:
        items = (value.split(",") if value.strip() else []) if isinstance(value, str) else value
        if not isinstance(items, (list, tuple)):
            raise ValueError("must be a list")
        member = typing.get_args(hint)[0]
        return tuple(_to_type(member, item.strip() if isinstance(item, str) else item) for item in items)
    return _CONVERTERS[hint](value)


def _bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    word = str(value).lower()
    if word not in BOOLEANS:
        raise ValueError("must be true or false")
    return BOOLEANS[word]


def _int(value: Any) -> int:
    if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
        raise ValueError("must be an integer")
    try:
        return int(value)
    except (TypeError, ValueError):
        raise ValueError("must be an integer") from None


def _float(value: Any) -> float:
    try:
        return float("not a number" if isinstance(value, bool) else value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError("must be a number") from None


def _str(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("must be text")  # noqa: TRY004 convert collects ValueErrors
    return value


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
