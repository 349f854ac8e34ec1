"""Method, settings and options of ``pfl-fast train``: merged from file, flags, settings and assignments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfl_fast import config, trust
from pfl_fast.cli.pfllib_flags import DATASETS, METHOD_NAMES, MODELS, canonical_name, translate
from pfl_fast.errors import ConfigError

if TYPE_CHECKING:
    from pfl_fast.assembly import Resolved


@dataclass
class TrainRequest:
    """A run as requested on the command line.

    Attributes:
        method: name of the method.
        resolved: checked settings and options.
        values: settings and options given by the user.
        values_with_preset: ``values`` on top of the preset's values, to repeat the run with a method without that
            preset.
        preset: name of the preset.
        notes: messages about PFLlib flags without effect, and about options in the file that the method leaves out.
    """

    method: str
    resolved: Resolved
    values: dict[str, Any]
    values_with_preset: dict[str, Any]
    preset: str | None
    notes: list[str]


def build_request(
    method: str | None,
    preset: str | None,
    settings: Mapping[str, Any],
    flags: Mapping[str, str],
    assignments: Iterable[str],
    config_file: Path | None,
    trusted: bool = False,
) -> TrainRequest:
    """Merges file, PFLlib flags, settings and assignments; raises one error that lists all mistakes.

    Code that only the file names is refused unless ``trusted``, see :mod:`pfl_fast.trust`.
    """
    from pfl_fast.assembly import find_method, resolve
    from pfl_fast.data.catalogue import DATASETS as CATALOGUE
    from pfl_fast.methods import METHODS
    from pfl_fast.models import absolute_code
    from pfl_fast.models.registry import MODELS as KNOWN_MODELS

    errors: list[str] = []
    file = config.read(config_file) if config_file else {}
    file_method = file.pop("method", None)
    assigned = read_assignments(assignments, errors)
    name = method or flags.get("algo") or file_method
    if not isinstance(name, str):
        raise ConfigError(f"no method given; choose one of {', '.join(METHODS)}")
    if config_file:
        replaced = {*settings, *assigned, *(["model"] if "m" in flags else [])}
        replaced |= {"method"} if method or "algo" in flags else set()
        from_file = {n: value for n, value in {**file, "method": file_method}.items() if n not in replaced}
        trust.check(config_file, from_file, trusted)  # before anything is imported
    name = absolute_code(canonical_name(name, METHODS, METHOD_NAMES))
    method_class = find_method(name)
    left_out = options_in(file, file_method) if file_method != name else []
    file = {n: value for n, value in file.items() if n not in left_out}
    translated = translate(flags, method_class.title, [f.name for f in fields(method_class.Options)])
    errors += translated.errors
    errors += [f"{n}: given twice, as a PFLlib flag and as an option" for n in translated.values if n in settings]
    chosen = {**translated.values, **settings, **assigned}
    values = {**file, **chosen}
    other_preset = values.pop("preset", None)
    preset = preset or other_preset
    for setting, known, renamed in (("dataset", CATALOGUE, DATASETS), ("model", KNOWN_MODELS, MODELS)):
        if isinstance(values.get(setting), str):
            values[setting] = canonical_name(values[setting], known, renamed)
    resolved = resolve(method_class, values, preset=preset, errors=errors)
    notes = [f"{config_file}: options of {file_method} left out: {', '.join(left_out)}"] if left_out else []
    with_preset = {**(method_class.preset(preset or "", resolved.settings.dataset) or {}), **values}
    return TrainRequest(name, resolved, values, with_preset, preset, [*translated.notes, *notes])


def options_in(values: Iterable[str], method: str | None) -> list[str]:
    """Returns the names that are options of a method, in their order."""
    from pfl_fast.methods import METHODS

    own = {f.name for f in fields(METHODS[method].Options)} if method in METHODS else set()
    return [name for name in values if name in own]


def read_assignments(assignments: Iterable[str], errors: list[str]) -> dict[str, str]:
    """Parses the ``KEY=VALUE`` arguments of ``--set``; dashes in keys become underscores."""
    result = {}
    for text in assignments:
        key, equals, value = text.partition("=")
        if equals and key.strip():
            result[key.strip().replace("-", "_")] = value.strip()
        else:
            errors.append(f"--set {text}: must be KEY=VALUE")
    return result
