"""Catalogue of data sets: origin, terms, files and readers of each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from pfl_fast.data.domain_catalogue import DOMAIN_DATASETS
from pfl_fast.data.entry import RESEARCH, Download, Entry
from pfl_fast.data.sources import ag_news, cifar, digits, idx, npz, tiny_imagenet
from pfl_fast.data.sources.names import CIFAR10, CIFAR100_FINE, DIGITS, FASHION
from pfl_fast.data.sources.raw import Source
from pfl_fast.errors import DataRequestError, did_you_mean


def _idx_downloads(
    mirrors: tuple[str, ...], checksums: tuple[str, ...], sizes: tuple[int, ...]
) -> tuple[Download, ...]:
    files = [f"{name}.gz" for name in idx.FILES]
    return tuple(
        Download(file, tuple(mirror + file for mirror in mirrors), f"md5:{checksum}", size)
        for file, checksum, size in zip(files, checksums, sizes, strict=True)
    )


def _is_fashion(folder: Path) -> bool:
    """Returns whether a folder is Fashion-MNIST's, whose files have the same names as MNIST's."""
    return any("fashion" in part.lower() for part in folder.parts[-2:])


def _cifar_download(number: int, checksum: str, size: int) -> tuple[Download, ...]:
    file = f"cifar-{number}-python.tar.gz"
    return (Download(file, (f"https://www.cs.toronto.edu/~kriz/{file}",), f"md5:{checksum}", size),)


def _cifar(number: str, classes: tuple[str, ...]) -> tuple[Source, ...]:
    return (cifar.source(number, "python"), cifar.source(number, "binary"), npz.single(f"cifar{number}", classes, 3))


_CIFAR100 = Entry(
    title="CIFAR-100",
    homepage="https://www.cs.toronto.edu/~kriz/cifar.html",
    licence=RESEARCH,
    classes=100,
    samples=60_000,
    size=32,
    downloads=_cifar_download(100, "eb9058c3a382ffc7106e4002c42a8d85", 169_001_437),
    sources=_cifar("100", CIFAR100_FINE),
    folders=("cifar100", "CIFAR100"),
    base="cifar100",
)

DATASETS: dict[str, Entry] = {
    "tiny": Entry(
        title="Tiny-ImageNet",
        homepage="http://cs231n.stanford.edu/",
        licence="ImageNet's terms: non-commercial research and education",
        classes=200,
        samples=110_000,
        size=64,
        downloads=(
            Download(
                "tiny-imagenet-200.zip",
                ("https://cs231n.stanford.edu/tiny-imagenet-200.zip",),
                "md5:90528d7ca1a48142e341f4ef8d21d0de",
                248_100_043,
            ),
        ),
        sources=(tiny_imagenet.SOURCE,),
        pools_test=False,
        folders=("tiny", "tiny-imagenet"),
    ),
    "mnist": Entry(
        title="MNIST",
        homepage="http://yann.lecun.com/exdb/mnist/",
        licence="CC BY-SA 3.0",
        classes=10,
        samples=70_000,
        size=28,
        channels=1,
        downloads=_idx_downloads(
            ("https://ossci-datasets.s3.amazonaws.com/mnist/",),
            (
                "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                "d53e105ee54ea40749a09fcbcd1e9432",
                "9fb629c4189551a2d022fa330f9573f3",
                "ec29112dd5afa0611ce80d1b7f02629c",
            ),
            (9_912_422, 28_881, 1_648_877, 4_542),
        ),
        sources=(idx.source(DIGITS, lambda folder: not _is_fashion(folder)), npz.single("mnist", DIGITS, 1)),
        folders=("mnist", "MNIST/raw", "MNIST"),
    ),
    "fashion-mnist": Entry(
        title="Fashion-MNIST",
        homepage="https://github.com/zalandoresearch/fashion-mnist",
        licence="MIT",
        classes=10,
        samples=70_000,
        size=28,
        channels=1,
        downloads=_idx_downloads(
            ("https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",),
            (
                "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                "25c81989df183df01b3e8a0aad5dffbe",
                "bef4ecab320f06d8554ea6380940ec79",
                "bb300cfdad3c16e7a12a480ee83cd310",
            ),
            (26_421_880, 29_515, 4_422_102, 5_148),
        ),
        sources=(idx.source(FASHION, _is_fashion), npz.single("fashion-mnist", FASHION, 1)),
        folders=("fashion-mnist", "FashionMNIST/raw", "FashionMNIST"),
    ),
    "cifar10": Entry(
        title="CIFAR-10",
        homepage="https://www.cs.toronto.edu/~kriz/cifar.html",
        licence=RESEARCH,
        classes=10,
        samples=60_000,
        size=32,
        downloads=_cifar_download(10, "c58f30108f718f92721af3b95e74349a", 170_498_071),
        sources=_cifar("10", CIFAR10),
        folders=("cifar10", "CIFAR10"),
    ),
    "cifar100": _CIFAR100,
    "cifar100-coarse": replace(
        _CIFAR100, title="CIFAR-100 by superclass", classes=20, labelling="coarse", partition="superclass"
    ),
    "agnews": Entry(
        title="AG News",
        modality="text",
        homepage="http://groups.di.unipi.it/~gulli/AG_corpus_of_news_articles.html",
        licence="non-commercial use",
        classes=4,
        samples=127_600,
        size=200,
        channels=0,
        downloads=tuple(
            Download(
                f"{part}.csv",
                (f"https://raw.githubusercontent.com/mhjabreel/CharCnn_Keras/master/data/ag_news_csv/{part}.csv",),
                f"md5:{checksum}",
                size,
            )
            for part, checksum, size in (
                ("train", "b1a00f826fdfbd249f79597b59e1dc12", 29_470_338),
                ("test", "d52ea96a97a2d943681189a97654912d", 1_857_427),
            )
        ),
        sources=(ag_news.SOURCE,),
        folders=("agnews", "ag_news", "ag_news_csv", "AG_NEWS"),
        vocabulary=2000,
    ),
    **DOMAIN_DATASETS,
    "digits": Entry(
        title="scikit-learn's handwritten digits",
        homepage="https://archive.ics.uci.edu/dataset/80/optical+recognition+of+handwritten+digits",
        licence="CC BY 4.0",
        classes=10,
        samples=1_797,
        size=8,
        channels=1,
        sources=(digits.SOURCE,),
        official_test=False,
    ),
    "synthetic": Entry(
        title="generated images",
        homepage="pfl_fast.data.synthetic",
        licence="none needed",
        classes=10,
        samples=6_000,
        size=32,
    ),
}


def entry(name: str, others: Iterable[str] = ()) -> Entry:
    """Returns the entry of a data set; an unknown name is compared with ``others`` too.

    >>> entry("cifar10").input_shape
    (3, 32, 32)
    >>> entry("cifar")
    Traceback (most recent call last):
    pfl_fast.errors.DataRequestError: unknown data set 'cifar'; did you mean 'cifar10'?; see 'pfl-fast datasets'
    """
    try:
        return DATASETS[name]
    except KeyError:
        hint = did_you_mean(name, [*DATASETS, *others])
        raise DataRequestError(f"unknown data set {name!r}{hint or ''}; see 'pfl-fast datasets'") from None


Found = tuple[Source, tuple[Path, ...]]


def locate(entry: Entry, folder: Path) -> Found | None:
    """Returns the first layout of an entry that is in ``<folder>/<name>/`` or in ``folder``, and its files."""
    for place in (*(folder / name for name in entry.folders), folder):
        for source in entry.sources:
            if files := source.find(place):
                return source, files
    return None
