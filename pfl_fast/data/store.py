"""A data set as a folder: one memory-mapped .npy file per array and a manifest, no pickles."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfl_fast.data.dataset import Dataset
from pfl_fast.errors import DataError
from pfl_fast.paths import data_folder

MANIFEST = "manifest.json"
TEXTS = ("name", "classes", "mean", "std", "domains", "vocabulary", "source")


def imported_folder(name: str, folder: Path | None = None) -> Path:
    """Where an imported data set of this name lives."""
    if not name or name != Path(name).name or name.startswith("."):
        raise DataError(f"{name!r} cannot be the name of a data set; use letters, digits, '-' and '_'")
    return (folder or data_folder()) / "imported" / name


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A folder to fill, which gets its name ``folder`` when the block ends well and vanishes when it does not."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DataError(f"{folder} is there already; remove it or choose another name")
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        yield unfinished
        unfinished.chmod(0o755)
        unfinished.replace(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def save_dataset(dataset: Dataset, folder: str | Path) -> None:
    """Writes the data set into a new folder; a crash leaves nothing of that name."""
    arrays: dict[str, NDArray[Any]] = {"x": dataset.x, "y": dataset.y, "test": dataset.test}
    arrays |= {f"label_{name}": values for name, values in dataset.labels.items()}
    if dataset.domain is not None:
        arrays["domain"] = dataset.domain
    sizes = None
    if dataset.natural is not None:
        sizes = [[len(train), len(test)] for train, test in dataset.natural]
        lists = [index for both in dataset.natural for index in both]
        arrays["natural"] = np.concatenate([np.zeros(0, dtype=np.int64), *lists])
    manifest = {"format": 1, **{name: getattr(dataset, name) for name in TEXTS}, "natural": sizes}
    manifest["arrays"] = {name: [str(array.dtype), *array.shape] for name, array in arrays.items()}
    with new_folder(Path(folder)) as unfinished:
        for name, array in arrays.items():
            np.save(unfinished / f"{name}.npy", array, allow_pickle=False)
        (unfinished / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")


def load_dataset(folder: str | Path) -> Dataset:
    """Reads what :func:`save_dataset` wrote; samples stay in the file until they are asked for."""
    folder = Path(folder)
    manifest = _manifest(folder / MANIFEST)
    try:
        arrays: dict[str, Any] = {n: _array(folder / f"{n}.npy", kind) for n, kind in manifest["arrays"].items()}
        texts: dict[str, Any] = {name: tuple(v) if isinstance(v := manifest[name], list) else v for name in TEXTS}
        natural = _natural(folder, arrays.pop("natural"), manifest["natural"]) if manifest["natural"] else None
        labels = {name.removeprefix("label_"): arrays.pop(name) for name in [*arrays] if name.startswith("label_")}
        dataset = Dataset(**arrays, **texts, labels=labels, natural=natural)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise _broken(folder / MANIFEST, f"it lacks or garbles {error}") from error
    per_sample = [dataset.x, dataset.test, *labels.values(), *([] if dataset.domain is None else [dataset.domain])]
    if any(len(values) != len(dataset.y) for values in per_sample):
        raise _broken(folder, "its arrays differ in length")
    return dataset


def _manifest(file: Path) -> dict[str, Any]:
    try:
        manifest = json.loads(file.read_text())
    except FileNotFoundError:
        raise DataError(f"{file.parent} holds no data set: there is no {file.name} in it") from None
    except (OSError, ValueError) as error:
        raise _broken(file, str(error)) from error
    if not isinstance(manifest, dict) or manifest.get("format") != 1:
        raise _broken(file, "it is not a data set of format 1")
    return manifest


def _array(file: Path, kind: list[Any]) -> NDArray[Any]:
    try:
        small = file.stem != "x" or 0 in kind[1:]  # an empty file cannot be mapped
        array: NDArray[Any] = np.load(file, mmap_mode=None if small else "r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise _broken(file, str(error)) from error
    if [str(array.dtype), *array.shape] != kind:
        raise _broken(file, f"it holds {array.dtype} {list(array.shape)}, expected {kind}")
    return array


def _natural(
    folder: Path, flat: NDArray[np.int64], sizes: list[list[int]]
) -> tuple[tuple[NDArray[np.int64], NDArray[np.int64]], ...]:
    if sum(train + test for train, test in sizes) != len(flat):
        raise _broken(folder / MANIFEST, "its clients' sizes do not fit natural.npy")
    pieces = iter(np.split(flat, np.cumsum(np.ravel(sizes))[:-1]))
    return tuple((next(pieces), next(pieces)) for _ in sizes)


def _broken(file: Path, what: str) -> DataError:
    return DataError(f"{file}: the stored data set cannot be used, {what}; remove the folder and prepare it again")
