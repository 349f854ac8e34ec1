"""Checks of model options."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from pfl_fast.errors import ConfigError, did_you_mean


def expect_one_of(model: str, option: str, value: str, choices: Collection[str]) -> None:
    """Raises ConfigError unless ``value`` is one of ``choices``."""
    if value not in choices:
        hint = did_you_mean(str(value), choices)
        raise ConfigError(f"model {model!r}: {option} must be one of {', '.join(choices)}, got {value!r}{hint}")


def expect_positive(model: str, option: str, value: Any) -> None:
    """Raises ConfigError unless ``value`` is an integer of at least 1."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"model {model!r}: {option} must be an integer of at least 1, got {value!r}")


def expect_bool(model: str, option: str, value: Any) -> None:
    """Raises ConfigError unless ``value`` is True or False."""
    if not isinstance(value, bool):
        raise ConfigError(f"model {model!r}: {option} must be true or false, got {value!r}")
