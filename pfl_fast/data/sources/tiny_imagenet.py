"""Tiny-ImageNet: ``tiny-imagenet-200.zip`` as distributed, or unpacked.

``wnids.txt`` lists the classes, ``words.txt`` their names. Training images are in ``train/<wnid>/images``, validation
images in ``val/images`` with their classes in ``val/val_annotations.txt``; they become the official test part, because
the labels of the real one are not published. Classes are numbered by sorted wnid and samples sorted by name, as in
torchvision's ImageFolder. Folders of ``train/`` that are not in ``wnids.txt`` are left out and reported.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import numpy as np

from pfl_fast.data.sources.raw import Raw, Source
from pfl_fast.data.sources.tree import Tree
from pfl_fast.errors import DataError, damaged

CLASSES = 200


def find(folder: Path) -> tuple[Path, ...]:
    """Returns the unpacked folder, else the archive."""
    unpacked = [path for path in (folder, *sorted(folder.glob("tiny-imagenet*/"))) if (path / "wnids.txt").is_file()]
    archives = sorted(folder.glob("tiny-imagenet*.zip"))
    return tuple([*unpacked, *archives][:1])


def read(files: tuple[Path, ...], size: int) -> Raw:
    """Lists images and labels; images are decoded later."""
    tree = Tree(files)
    root = next((name.removesuffix("wnids.txt") for name in tree.names if name.endswith("wnids.txt")), None)
    if root is None:
        raise DataError(f"{files[0]}: no wnids.txt in it; this is not Tiny-ImageNet: fetch tiny-imagenet-200.zip again")
    wnids = sorted({wnid for line in tree.text(f"{root}wnids.txt") if (wnid := line.strip())})
    number = {wnid: label for label, wnid in enumerate(wnids)}
    images = [name for name in tree.names if name.startswith(f"{root}train/") and name.endswith(".JPEG")]
    folder_of = {name: PurePosixPath(name.removeprefix(f"{root}train/")).parts[0] for name in images}
    train = {name: folder for name, folder in folder_of.items() if folder in number}
    if not train:
        raise DataError(f"{files[0]}: no training images in it; fetch tiny-imagenet-200.zip again")
    test, annotations = {}, f"{root}val/val_annotations.txt"
    for line in tree.text(annotations):
        image, wnid = [*line.split("\t"), ""][:2]
        if wnid not in number:
            raise DataError(f"{tree.path(annotations)}: {image} has class {wnid}, not in wnids.txt")
        test[f"{root}val/images/{image}"] = wnid
    if missing := sorted(set(test) - set(tree.names)):
        raise damaged(tree.path(missing[0]), f"missing ({len(missing)} such); incomplete")
    test = dict(sorted(test.items()))
    names = [*train, *test]
    return Raw(
        shape=(len(names), size, size, 3),
        dtype="uint8",
        blocks=lambda: tree.images(names, size),
        y=np.array([number[wnid] for wnid in (train | test).values()], np.int64),
        classes=_class_names(tree, root, wnids),
        test=np.arange(len(names)) >= len(train),
        note=_note(files[0].name, wnids, set(folder_of.values())),
    )


def _note(name: str, wnids: list[str], folders: set[str]) -> str:
    stray, empty = sorted(folders - {*wnids}), sorted({*wnids} - folders)
    notes = [f"{len(wnids)} of {CLASSES} classes"] if len(wnids) != CLASSES else []
    notes += [f"left out train/{', train/'.join(stray)}: not in wnids.txt"] if stray else []
    notes += [f"no training images of {', '.join(empty)}"] if empty else []
    return f"{name}: {'; '.join(notes)}" if notes else ""


def _class_names(tree: Tree, root: str, wnids: list[str]) -> tuple[str, ...]:
    """Returns the first synonym of each class, with the wnid where two classes share it ("crane")."""
    words = dict(line.split("\t", 1) for line in tree.text(f"{root}words.txt") if "\t" in line)
    names = [words.get(wnid, wnid).split(",")[0].strip() for wnid in wnids]
    return tuple(f"{name} ({wnid})" if names.count(name) > 1 else name for name, wnid in zip(names, wnids, strict=True))


SOURCE = Source("tiny-imagenet-200.zip, or unpacked as tiny-imagenet-200/", find, read, version=2)
