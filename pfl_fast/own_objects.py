"""Objects passed from Python instead of names: their descriptions in ``config.toml``.

A description names nothing that can be loaded, so a file with one is refused instead of running something else.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from pfl_fast.errors import ConfigError

_MARK = "own object: "


def described(text: str) -> str:
    """Returns the setting that stands for an object."""
    return _MARK + text


def is_described(value: object) -> bool:
    """Returns whether a setting stands for an object.

    >>> is_described(described("MyData, 60 samples")), is_described("mnist")
    (True, False)
    """
    return isinstance(value, str) and value.startswith(_MARK)


def path_or_description(thing: type | object) -> str:
    """Returns ``"module:attribute"`` of a class or function if importing it gives the object, else a description."""
    module, name = getattr(thing, "__module__", ""), getattr(thing, "__qualname__", "")
    found: object = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    importable = found is thing and module not in ("__main__", "builtins")
    return f"{module}:{name}" if importable else described(f"{module}:{name}")


def refuse_descriptions(settings: Mapping[str, object]) -> None:
    """Raises if a setting stands for an object: names alone do not repeat the run."""
    for name, value in settings.items():
        if is_described(value):
            hint = "; --partition FOLDER/partition takes the partition of a run" if name == "partition" else ""
            raise ConfigError(
                f"{name}: this run used an object passed from Python ({str(value).removeprefix(_MARK)}), which is not "
                f"stored with it; pass it again as Experiment(..., {name}=...) or Experiment.resume(folder, "
                f"{name}=...){hint}"
            )
