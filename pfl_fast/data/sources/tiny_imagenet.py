"""Tiny-ImageNet: ``tiny-imagenet-200.zip`` as distributed, or unpacked.

Training images are in ``train/<wnid>/images``, validation images in ``val/images`` with their classes in
``val/val_annotations.txt`` (they become the official test part: the real one has no published labels), names of classes
in ``words.txt``. Classes are numbered by sorted wnid, samples sorted by name, as torchvision's ImageFolder does.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import numpy as np

from pfl_fast.data.sources.raw import Raw, Source
from pfl_fast.data.sources.tree import Tree
from pfl_fast.errors import DataError

CLASSES = 200


def find(folder: Path) -> tuple[Path, ...]:
    """An unpacked folder, else an archive."""
    unpacked = [path for path in (folder, *sorted(folder.glob("tiny-imagenet*/"))) if (path / "wnids.txt").is_file()]
    archives = sorted(folder.glob("tiny-imagenet*.zip"))
    return tuple([*unpacked, *archives][:1])


def read(files: tuple[Path, ...], size: int) -> Raw:
    """Lists images and labels; decodes later."""
    tree = Tree(files)
    root = next((name.removesuffix("wnids.txt") for name in tree.names if name.endswith("wnids.txt")), None)
    if root is None:
        raise DataError(f"{files[0]}: no wnids.txt in it; this is not Tiny-ImageNet: fetch tiny-imagenet-200.zip again")
    train = [name for name in tree.names if name.startswith(f"{root}train/") and name.endswith(".JPEG")]
    wnid_of = {name: PurePosixPath(name.removeprefix(f"{root}train/")).parts[0] for name in train}
    wnids = sorted(set(wnid_of.values()))
    if not wnids:
        raise DataError(f"{files[0]}: no training images in it; fetch tiny-imagenet-200.zip again")
    number = {wnid: label for label, wnid in enumerate(wnids)}
    test = {}
    for line in tree.text(f"{root}val/val_annotations.txt"):
        image, wnid = [*line.split("\t"), ""][:2]
        if wnid not in number:
            raise DataError(f"{tree.path(f'{root}val/val_annotations.txt')}: {image} has class {wnid}, not in train/")
        test[f"{root}val/images/{image}"] = wnid
    if missing := sorted(set(test) - set(tree.names)):
        raise DataError(
            f"{tree.path(missing[0])}: missing ({len(missing)} such); incomplete: delete it and fetch it again"
        )
    test = dict(sorted(test.items()))
    names = [*train, *test]
    note = "" if len(wnids) == CLASSES else f"{files[0].name}: {len(wnids)} of {CLASSES} classes"
    return Raw(
        shape=(len(names), size, size, 3),
        dtype="uint8",
        blocks=lambda: tree.images(names, size),
        y=np.array([number[wnid] for wnid in (wnid_of | test).values()], np.int64),
        classes=_class_names(tree, root, wnids),
        test=np.arange(len(names)) >= len(train),
        note=note,
    )


def _class_names(tree: Tree, root: str, wnids: list[str]) -> tuple[str, ...]:
    """The first of each class's synonyms; the wnid is added where two classes share it ("crane")."""
    words = dict(line.split("\t", 1) for line in tree.text(f"{root}words.txt") if "\t" in line)
    names = [words.get(wnid, wnid).split(",")[0].strip() for wnid in wnids]
    return tuple(f"{name} ({wnid})" if names.count(name) > 1 else name for name, wnid in zip(names, wnids, strict=True))


SOURCE = Source("tiny-imagenet-200.zip, or unpacked as tiny-imagenet-200/", find, read)
