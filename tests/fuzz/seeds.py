"""Small valid files of every format that is read, and the function that reads each."""

from __future__ import annotations

import bz2
import pickle
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.io import savemat

from pfl_fast.data import cache, catalogue
from pfl_fast.data.fl_bench import read_fl_bench
from pfl_fast.data.partition import Partition
from pfl_fast.data.pfllib import export_pfllib, import_pfllib
from pfl_fast.data.unpickle import load_plain
from pfl_fast.errors import DataError
from tests.data.archives import (
    cifar10_members,
    picture,
    pixels,
    tiny_members,
    write_folder,
    write_mnist,
    write_tar,
    write_zip,
)
from tests.data.samples import images, labelled, partitioned

SIZE = 8  # of images, and number of tokens
Files = dict[str, bytes]


@dataclass(frozen=True)
class Loader:
    """``make`` writes valid files into a folder, ``load`` reads all of them."""

    make: Callable[[Path], object]
    load: Callable[[Path], object]

    def files(self) -> Files:
        """Returns the valid files by their path in the folder."""
        with tempfile.TemporaryDirectory() as folder:
            self.make(Path(folder))
            return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(Path(folder).rglob("*")) if p.is_file()}


def decode(name: str) -> Callable[[Path], object]:
    """Decodes a data set of the catalogue, every sample, without a cache."""

    def load(folder: Path) -> object:
        found = catalogue.locate(catalogue.DATASETS[name], folder)
        if found is None:
            raise DataError("not found")
        raw = found[0].read(found[1], SIZE)
        cache._check(raw, "origin")
        return [block.shape for block in raw.blocks()]

    return load


def saved(folder: Path) -> object:
    try:
        return cache.read_cache(folder / "set")
    except cache.BrokenCacheError as error:
        raise DataError(str(error)) from error


DATASET = images(np.arange(30) % 3, shape=(4, 4, 3))


def text():
    return labelled(np.arange(9) % 2, x=np.arange(54, dtype=np.int32).reshape(9, 6), vocabulary=54)


def cifar_binary(folder):
    rows = {f"cifar-10-batches-bin/{name}": pixels(3, 2, 3073) % 10 for name in
            (*[f"data_batch_{i}.bin" for i in range(1, 6)], "test_batch.bin")}  # fmt: skip
    write_tar(folder / "cifar-10-binary.tar.gz", {name: data.tobytes() for name, data in rows.items()})


def digits5(folder):
    write_mnist(folder, train=3, test=2, zipped=False)
    for part, count in (("train", 3), ("test", 2)):
        content = {"X": pixels(1, 32, 32, 3, count), "y": np.arange(count)[:, None] + 1.0}
        savemat(folder / f"{part}_32x32.mat", content, do_compression=part == "train")
    lines = b"1 1:0.5 7:-1 256:1\n10 3:0.25\n"
    for name in ("usps.bz2", "usps.t.bz2"):
        (folder / name).write_bytes(bz2.compress(lines))
    mnistm = {"train": pixels(3, 2, 28, 28, 3), "test": np.zeros((1, 28, 28, 3)), "label_test": np.eye(10)[[1]]}
    savemat(folder / "mnistm_with_label.mat", mnistm | {"label_train": np.eye(10)[[4, 0]]})


def fedbn(folder):
    for domain, protocol in (("MNIST", 2), ("SVHN", 4), ("USPS", 5)):
        (folder / domain).mkdir()
        for name in ("train", "test"):
            pair = (pixels(1, 2, 6, 6), np.array([1, 2]))
            (folder / domain / f"{name}.pkl").write_bytes(pickle.dumps(pair, protocol))


def pacs(folder):
    members = {
        f"PACS/{domain}/{name}/{i}.{form.lower()}": picture(pixels(i, 5, 5, 3), form)
        for domain in ("photo", "sketch")
        for name in ("dog", "house")
        for i, form in enumerate(("PNG", "JPEG", "BMP"))
    }
    write_zip(folder / "PACS.zip", members | {"PACS/readme.txt": b"x"})
    (folder / "photo_test.txt").write_text("photo/dog/0.png 0\n")


def npz(folder):
    x = pixels(0, 5, 6, 6)
    np.savez_compressed(folder / "mnist.npz", x_train=x, y_train=np.arange(5), x_test=x[:2], y_test=[0, 9])


def one_group(folder):
    names = {"domains": ["MNIST", "SVHN"], "classes": [str(i) for i in range(10)]}
    np.savez(folder / "digits5.npz", x=pixels(0, 5, 6, 6, 3), y=np.arange(5), domain=[0, 1, 1, 0, 0], **names)


def agnews(folder):
    (folder / "train.csv").write_text('"3","Oil up","It is ""very"" high"\n"1","News","of today"\n')
    (folder / "test.csv").write_text("label,label_name,text\n0,World,more of it\n")


def fl_bench(folder):
    clients = [{"train": np.arange(5), "test": [5, 6], "val": []}, {"train": [7, 8], "test": np.array([9])}]
    (folder / "partition.pkl").write_bytes(pickle.dumps({"data_indices": clients}))
    (folder / "all_stats.json").write_text('{"0": {"y": {"0": 3, "1": 2, "2": 2}}}')


def plain_values(folder):
    value = {
        "x": np.ones((2, 3), np.float32),
        b"k": [1, 2.5, None, True, (np.int64(3), "é")],
        "o": np.array([{}, None]),
    }
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        (folder / f"{protocol}.pkl").write_bytes(pickle.dumps(value, protocol))


def unpickle_all(folder: Path) -> object:
    errors = []
    for file in sorted(folder.iterdir()):
        try:
            load_plain(file.read_bytes(), str(file))
        except DataError as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return None


LOADERS: dict[str, Loader] = {
    "idx": Loader(lambda f: write_mnist(f, train=3, test=2), decode("mnist")),
    "npz": Loader(npz, decode("mnist")),
    "npz with domains": Loader(one_group, decode("digits5")),
    "CIFAR tar": Loader(lambda f: write_tar(f / "cifar-10-python.tar.gz", cifar10_members(1)[0]), decode("cifar10")),
    "CIFAR folder": Loader(lambda f: write_folder(f, cifar10_members(1)[0]), decode("cifar10")),
    "CIFAR binary tar": Loader(cifar_binary, decode("cifar10")),
    "Tiny-ImageNet zip": Loader(
        lambda f: write_zip(f / "tiny-imagenet-200.zip", tiny_members(per_class=1, side=6)[0]), decode("tiny")
    ),
    "Tiny-ImageNet folder": Loader(lambda f: write_folder(f, tiny_members(per_class=1, side=6)[0]), decode("tiny")),
    "image folders": Loader(pacs, decode("pacs")),
    "AG News": Loader(agnews, decode("agnews")),
    "Digits-Five": Loader(digits5, decode("digits5")),
    "Digits-Five pickles": Loader(fedbn, decode("digits5")),
    "pickle": Loader(plain_values, unpickle_all),
    "PFLlib images": Loader(
        lambda f: export_pfllib(DATASET, partitioned(DATASET, "iid", clients=2), f / "set"),
        lambda f: import_pfllib(f / "set"),
    ),
    "PFLlib text": Loader(
        lambda f: export_pfllib(text(), partitioned(text(), "iid", clients=2), f / "set"),
        lambda f: import_pfllib(f / "set"),
    ),
    "FL-bench": Loader(fl_bench, lambda f: read_fl_bench(f, DATASET)),
    "partition": Loader(lambda f: partitioned(DATASET, "iid", clients=2).save(f), Partition.load),
    "decoded data set": Loader(lambda f: cache.save_dataset(DATASET, f / "set"), saved),
}
