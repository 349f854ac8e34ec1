"""Checks of the arguments of modules."""

from __future__ import annotations

from collections.abc import Collection


def expect_positive(module: str, name: str, value: int) -> None:
    """Raises ValueError unless ``value`` is an integer of at least 1."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{module}: {name} must be an integer of at least 1, got {value!r}")


def expect_one_of(module: str, name: str, value: str, choices: Collection[str]) -> None:
    """Raises ValueError unless ``value`` is one of ``choices``."""
    if value not in choices:
        raise ValueError(f"{module}: {name} must be one of {', '.join(choices)}, got {value!r}")
