"""Entries of the catalogue of data sets."""

from __future__ import annotations

from dataclasses import dataclass

from pfl_fast.data.sources.raw import Source

RESEARCH = "none stated; used for research"


@dataclass(frozen=True)
class Download:
    """A file to download.

    Attributes:
        file: name of the file.
        urls: addresses, the preferred one first; none if the file must be fetched by hand.
        checksum: ``"md5:..."`` or ``"sha256:..."``, None if none is published.
        bytes: approximate size, 0 if unknown.
    """

    file: str
    urls: tuple[str, ...] = ()
    checksum: str | None = None
    bytes: int = 0

    @property
    def limit(self) -> int:
        """Number of bytes after which a download is refused: twice the approximate size, or 100 MB if it is unknown."""
        return 2 * self.bytes + 1_000_000 if self.bytes else 100_000_000


@dataclass(frozen=True)
class Entry:
    """A data set of the catalogue.

    Attributes:
        title: full name.
        homepage: address of the authors' page.
        licence: licence or terms of use.
        classes: number of classes.
        samples: number of samples, training and test together.
        size: default height and width of images, or number of tokens.
        modality: ``"images"``, ``"text"`` or ``"features"``.
        channels: 1 or 3 for images, 0 otherwise.
        downloads: files to download.
        by_hand: instructions for files that must be fetched by hand.
        sources: accepted layouts with their readers, the preferred one first; none for generated data.
        folders: subfolders of the data folder that may hold the files; the data folder itself is searched last.
        mean: mean of each channel, for values in [0, 1]. Default: 0.5.
        std: standard deviation of each channel, for values in [0, 1]. Default: 0.5.
        domains: number of domains, or 0.
        official_test: True if the data set has an official test part.
        pools_test: True if random splits include the official test part.
        test_by_class: True if the papers hold out test samples class by class.
        partition: default partition rule, for data with the labellings it needs; empty: one client per domain if there
            are domains, else dirichlet.
        augment: default augmentation of training images.
        base: name of the entry with the same files, if this one is another labelling of it.
        labelling: name of that labelling.
        vocabulary: number of tokens of a stand-in; text only.
    """

    title: str
    homepage: str
    licence: str
    classes: int
    samples: int
    size: int
    modality: str = "images"
    channels: int = 3
    downloads: tuple[Download, ...] = ()
    by_hand: str = ""
    sources: tuple[Source, ...] = ()
    folders: tuple[str, ...] = ()
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    domains: int = 0
    official_test: bool = True
    pools_test: bool = True
    test_by_class: bool = False
    partition: str = ""
    augment: str = "none"
    base: str = ""
    labelling: str = ""
    vocabulary: int = 0

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            if not getattr(self, name):
                object.__setattr__(self, name, (0.5,) * self.channels)

    @property
    def download_bytes(self) -> int:
        """Approximate size of all downloads, 0 if unknown."""
        return sum(download.bytes for download in self.downloads)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample at the default size: ``(C, H, W)`` or ``(L,)``."""
        return self.shape(self.size)

    def shape(self, size: int) -> tuple[int, ...]:
        """Returns the shape of one sample at another size."""
        return (self.channels, size, size) if self.modality == "images" else (size,)
