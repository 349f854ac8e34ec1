"""Image files of several domains: ``<domain>/<class>/<image>``, in folders or zip archives, at any depth."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from pfl_fast.data import bounded
from pfl_fast.data.sources.images import SUFFIXES
from pfl_fast.data.sources.raw import Raw, Source
from pfl_fast.data.sources.tree import Tree
from pfl_fast.errors import DataError


@dataclass(frozen=True)
class Layout:
    """Names of the folders; case, spaces and punctuation do not matter.

    Attributes:
        domains: names of domains, in order.
        archives: patterns of zip archives with all domains; ``<domain>.zip`` is always accepted.
        classes: names of classes, in order; other folders are left out. None: all folders.
        aliases: other names of domains and classes.
    """

    domains: tuple[str, ...]
    archives: tuple[str, ...]
    classes: tuple[str, ...] | None = None
    aliases: tuple[tuple[str, str], ...] = ()

    def plain(self, name: str) -> str:
        """Returns a name in the form used for comparisons."""
        bare = re.sub(r"[^a-z0-9]", "", name.lower())
        return dict(self.aliases).get(bare, bare)


def source(layout: Layout) -> Source:
    """Returns the source of a data set with such folders; ``<domain>_test.txt`` lists the test part, if present."""
    shape = f"<domain>/<class>/*.jpg ({', '.join(layout.domains)}), in folders or {' / '.join(layout.archives)}"
    return Source(shape, lambda folder: find(layout, folder), lambda files, size: read(layout, files, size))


def find(layout: Layout, folder: Path) -> tuple[Path, ...]:
    """Returns folders or archives of at least two domains, or one archive of all, and the lists of test images."""
    wanted = {layout.plain(domain) for domain in layout.domains}
    lists = [file for pattern in ("*_test.txt", "*/*_test.txt") for file in sorted(folder.glob(pattern))]
    lists = [file for file in lists if layout.plain(file.name.removesuffix("_test.txt")) in wanted]
    for place in (folder, *sorted(folder.glob("*/")), *sorted(folder.glob("*/*/"))):
        domains = [path for path in sorted(place.glob("*/")) if layout.plain(path.name) in wanted]
        if len(domains) > 1 and all(any(path.glob("*/")) for path in domains):
            return (*domains, *lists)
    archives = [path for path in sorted(folder.glob("*.zip")) if layout.plain(path.stem) in wanted]
    if len(archives) > 1:
        return (*archives, *lists)
    whole = [path for pattern in layout.archives for path in sorted(folder.glob(pattern))]
    return (whole[0], *lists) if whole else ()


def read(layout: Layout, files: tuple[Path, ...], size: int) -> Raw:
    """Lists images and labels; images are decoded later."""
    tree = Tree([file for file in files if file.suffix != ".txt"])
    domain_number = {layout.plain(domain): i for i, domain in enumerate(layout.domains)}
    samples = []  # (domain, class, name)
    for name in tree.names:
        parts = PurePosixPath(name).parts
        if len(parts) < 3 or not parts[-1].lower().endswith(SUFFIXES) or parts[-1].startswith("."):
            continue
        domain = next((domain_number[d] for d in map(layout.plain, parts[-3::-1]) if d in domain_number), None)
        if domain is not None:
            samples.append((domain, parts[-2], name))
    classes = layout.classes or tuple(sorted({folder for _, folder, _ in samples}))
    class_number = {layout.plain(name): i for i, name in enumerate(classes)}
    chosen = sorted((d, class_number[layout.plain(c)], n) for d, c, n in samples if layout.plain(c) in class_number)
    if not chosen:
        raise DataError(
            f"{files[0]}: no images in <domain>/<class>/ folders with the expected names; delete it and fetch it again"
        )
    present = sorted({domain for domain, _, _ in chosen})
    lists = [bounded.read_file(file).decode("utf-8", "replace") for file in files if file.suffix == ".txt"]
    official = {line.split()[0] for text in lists for line in text.splitlines() if line.strip()}
    names = [name for _, _, name in chosen]
    notes = [
        f"{len(found)} of {len(all_)} {what}"
        for what, found, all_ in (("domains", present, layout.domains), ("classes", {c for _, c, _ in chosen}, classes))
        if len(found) < len(all_)
    ]
    return Raw(
        shape=(len(names), size, size, 3),
        dtype="uint8",
        blocks=lambda: tree.images(names, size),
        y=np.array([label for _, label, _ in chosen], np.int64),
        classes=classes,
        test=np.array(["/".join(PurePosixPath(name).parts[-3:]) in official for name in names]),
        domain=np.searchsorted(present, [domain for domain, _, _ in chosen]).astype(np.int64),
        domains=tuple(layout.domains[i] for i in present),
        note=", ".join(notes),
    )
