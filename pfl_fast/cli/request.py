"""What the user asks ``pfl-fast train`` for: put together from file, flags, options and assignments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfl_fast import config
from pfl_fast.cli.pfllib_flags import DATASETS, MODELS, our_name, translate
from pfl_fast.cli.pfllib_flags import METHODS as RENAMED
from pfl_fast.errors import ConfigError

if TYPE_CHECKING:
    from pfl_fast.assembly import Resolved


@dataclass
class Request:
    """What the user asked for, from all the places where it can be said.

    Attributes:
        method: its name.
        resolved: settings and options, checked.
        values: settings and options.
        again: the same with the preset's values, for another method that has no such preset.
        notes: on what has no effect.
    """

    method: str
    resolved: Resolved
    values: dict[str, Any]
    again: dict[str, Any]
    notes: list[str]


def gather(
    method: str | None,
    preset: str | None,
    settings: Mapping[str, Any],
    flags: Mapping[str, str],
    assignments: Iterable[str],
    config_file: Path | None,
) -> Request:
    """Puts file, flags, settings and assignments together; complains about all that is wrong at once."""
    from pfl_fast.assembly import find_method, resolve
    from pfl_fast.data.catalogue import DATASETS as CATALOGUE
    from pfl_fast.methods import METHODS
    from pfl_fast.models.registry import MODELS as KNOWN_MODELS

    errors: list[str] = []
    file = config.read(config_file) if config_file else {}
    assigned = read_assignments(assignments, errors)
    name = method or flags.get("algo") or file.get("method")
    if not isinstance(name, str):
        raise ConfigError(f"say which method to train: {', '.join(METHODS)}")
    name = our_name(name, METHODS, RENAMED)
    kind = find_method(name)
    translated = translate(flags, kind.title, [f.name for f in fields(kind.Options)])
    errors += translated.errors
    errors += [f"{n}: said twice, as a flag of PFLlib's and as our own" for n in translated.values if n in settings]
    values = {**file, **translated.values, **settings, **assigned}
    values.pop("method", None)
    preset = preset or values.pop("preset", None)
    for setting, known, renamed in (("dataset", CATALOGUE, DATASETS), ("model", KNOWN_MODELS, MODELS)):
        if isinstance(values.get(setting), str):
            values[setting] = our_name(values[setting], known, renamed)
    resolved = resolve(kind, values, preset=preset, errors=errors)
    return Request(name, resolved, values, {**kind.presets.get(preset or "", {}), **values}, translated.notes)


def read_assignments(assignments: Iterable[str], errors: list[str]) -> dict[str, str]:
    """``key=value`` of ``--set``; a key may have dashes."""
    result = {}
    for text in assignments:
        key, equals, value = text.partition("=")
        if equals and key.strip():
            result[key.strip().replace("-", "_")] = value.strip()
        else:
            errors.append(f"--set {text}: write KEY=VALUE")
    return result
