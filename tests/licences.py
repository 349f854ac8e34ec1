"""Lists every package that pfl-fast needs, directly or through another, with its licence: ``make licences``."""

from __future__ import annotations

import re
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution

HEAD = """# Licences

The licence of pfl-fast is the Apache License 2.0 (`LICENSE`). A wheel with CUDA kernels contains NVIDIA's CUDA runtime,
linked statically. `make licences` writes this table from the metadata of the installed packages; those of NVIDIA and
triton come with CUDA builds of torch.

| package | needed by | licence |
| --- | --- | --- |"""


def requirements(package: Distribution) -> list[str]:
    """Names of the packages that one needs on this machine, without extras."""
    needed = []
    for line in package.requires or []:
        name, _, marker = line.partition(";")
        if "extra" not in marker and _applies(marker):
            needed.append(re.match(r"[\w.-]+", name.strip())[0].lower().replace("_", "-"))
    return needed


def _applies(marker: str) -> bool:
    return not any(words in marker for words in ('"win32"', '"Windows"', '"darwin"', '"Darwin"')) or "!=" in marker


def closure(root: str) -> dict[str, set[str]]:
    """Installed packages that ``root`` needs, with the packages that need them."""
    found: dict[str, set[str]] = {}
    waiting = [root]
    while waiting:
        owner = waiting.pop()
        for name in requirements(distribution(owner)):
            try:
                distribution(name)
            except PackageNotFoundError:  # its marker excludes this machine
                continue
            if name not in found:
                waiting.append(name)
            found.setdefault(name, set()).add(owner)
    return found


def licence(package: Distribution) -> str:
    """The licence of a package: expression, classifiers, or the first line of the free text."""
    facts = package.metadata
    classifiers = [text.rpartition(" :: ")[2] for text in facts.get_all("Classifier", []) if text.startswith("License")]
    text = facts.get("License-Expression") or ", ".join(classifiers) or (facts.get("License") or "").strip()
    return text.splitlines()[0][:100] if text else "not in its metadata"


def table() -> str:
    """The page."""
    found = closure("pfl-fast")
    rows = [
        f"| {name} | {', '.join(sorted(owners))} | {licence(distribution(name))} |" for name, owners in found.items()
    ]
    return "\n".join([HEAD, *sorted(rows)])


if __name__ == "__main__":
    sys.stdout.write(table() + "\n")
