"""Images in one folder per class, optionally below folders of domains or clients, and of training and test images.

<class>/<image>                 train/<class>/<image>  test/<class>/<image>
<domain>/<class>/<image>        train/<domain>/<class>/<image>, <domain>/train/<class>/<image>, ...
"""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np
from PIL import Image

from pfl_fast.data import bounded
from pfl_fast.data.rows import SPLIT_NAMES
from pfl_fast.data.sources.images import FORMATS, SUFFIXES
from pfl_fast.data.sources.raw import Raw
from pfl_fast.data.sources.tree import decode_files
from pfl_fast.errors import DataError

ENDINGS = (*SUFFIXES, ".gif", ".webp")
DEEPEST = 5  # levels of folders, of which a layout has at most 3
LARGEST = 64  # default height and width of larger images
LAYOUTS = (
    "<class>/<image>, or <domain>/<class>/<image> with one folder per domain or client; train and test may be folders "
    "above or below them"
)


class Place(NamedTuple):
    """Split, domain and class of an image, from its path."""

    split: str
    domain: str
    label: str


def read(root: Path, size: int) -> Raw:
    """Lists the images below ``root``; they are decoded later."""
    names, others = image_names(root)
    places = [_place(root, name) for name in names]
    if all(place.label.lower() in SPLIT_NAMES for place in places):
        raise DataError(f"{root / names[0]}: is in no folder of a class; expected {LAYOUTS}")
    for what, found in (
        ("train or test", {bool(p.split) for p in places}),
        ("domain", {bool(p.domain) for p in places}),
    ):
        if len(found) > 1:
            raise DataError(f"{root}: some images are in a folder of a {what} and some are not; expected {LAYOUTS}")
    classes, domains = (sorted({getattr(p, part) for p in places}) for part in ("label", "domain"))
    splits = {p.split for p in places}
    held_out = "test" if "test" in splits else "validation"
    if splits == {held_out}:
        raise DataError(f"{root}: has {held_out} images only; add a folder train, or give the folder above it")
    label, domain = ({name: number for number, name in enumerate(known)} for known in (classes, domains))
    notes = [f"{others} files that are not images left out"] * bool(others)
    notes += ["validation images count as training images"] * ("validation" in splits and held_out == "test")
    return Raw(
        shape=(len(names), size, size, 3),
        dtype="uint8",
        blocks=lambda: decode_files([root / name for name in names], size),
        y=np.array([label[p.label] for p in places], np.int64),
        classes=tuple(classes),
        test=np.array([p.split == held_out for p in places]),
        domain=np.array([domain[p.domain] for p in places], np.int64) if domains != [""] else None,
        domains=tuple(domains) if domains != [""] else (),
        files=tuple(names),
        note="; ".join(notes),
    )


def image_names(root: Path) -> tuple[list[str], int]:
    """Returns the paths of all images below ``root``, sorted, and the number of other files, without hidden ones."""
    names, others = [], 0
    with bounded.reading(root, "folder"):
        for folder, folders, files in os.walk(root, followlinks=True):
            below = Path(folder).relative_to(root)
            folders[:] = sorted(f for f in folders if not f.startswith(".") and len(below.parts) < DEEPEST)
            visible = [file for file in files if not file.startswith(".")]
            images = [file for file in visible if file.lower().endswith(ENDINGS)]
            names += [(below / file).as_posix() for file in images]
            others += len(visible) - len(images)
    if not names:
        raise DataError(f"{root}: no images ({', '.join(ENDINGS)}) in it; expected {LAYOUTS}")
    return sorted(names), others


def default_size(image: Path) -> int:
    """Returns the shorter side of an image, at most 64."""
    with bounded.reading(image, "image"), Image.open(image, formats=FORMATS) as opened:
        return min(LARGEST, *opened.size)


def _place(root: Path, name: str) -> Place:
    folders = list(PurePosixPath(name).parts[:-1])
    split = ""
    for level, folder in enumerate(folders):
        if folder.lower() in SPLIT_NAMES and len(folders) > 1:  # a class may have the name train
            split = SPLIT_NAMES[folders.pop(level).lower()]
            break
    if len(folders) not in (1, 2):
        where = "in no folder of a class" if not folders else "too deep in folders"
        raise DataError(f"{root / name}: is {where}; expected {LAYOUTS}")
    return Place(split, folders[0] if len(folders) == 2 else "", folders[-1])
