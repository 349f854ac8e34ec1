"""What the catalogue says about a data set."""

from __future__ import annotations

from dataclasses import dataclass

from pfl_fast.data.sources.raw import Source

HALF = 0.5
RESEARCH = "none stated; used for research"


@dataclass(frozen=True)
class Download:
    """A file of a data set.

    Attributes:
        file: its name.
        urls: where it is, the preferred address first; none when it cannot be fetched automatically.
        checksum: ``"md5:..."`` or ``"sha256:..."``, None when none is published.
        bytes: its size, about; 0 when unknown.
    """

    file: str
    urls: tuple[str, ...] = ()
    checksum: str | None = None
    bytes: int = 0


@dataclass(frozen=True)
class Entry:
    """A data set of the catalogue.

    Attributes:
        title: its full name.
        kind: ``"images"``, ``"text"`` or ``"features"``.
        homepage: where it comes from.
        licence: or terms of use, as far as stated.
        classes: number of classes.
        samples: number of samples, training and test together.
        size: default side of the images, or number of tokens.
        channels: 1 or 3 for images, 0 otherwise.
        downloads: its files.
        by_hand: how to get and place files that cannot be fetched automatically.
        sources: accepted layouts, the preferred one first, and how each is read; none when it is generated.
        folders: where below the data folder files are looked for, beside the data folder itself.
        mean: per channel, of values in [0, 1].
        std: likewise.
        domains: number of domains, 0 when it has none.
        official_test: whether it comes with a test part.
        pools_test: whether test samples join the others when clients' samples are split anew.
        augment: default augmentation of training images.
        base: the entry whose files it shares, when it is only another labelling of it.
        labelling: which one.
        vocabulary: number of tokens of a stand-in; text only.
    """

    title: str
    kind: str
    homepage: str
    licence: str
    classes: int
    samples: int
    size: int
    channels: int = 3
    downloads: tuple[Download, ...] = ()
    by_hand: str = ""
    sources: tuple[Source, ...] = ()
    folders: tuple[str, ...] = ()
    mean: tuple[float, ...] = (HALF, HALF, HALF)
    std: tuple[float, ...] = (HALF, HALF, HALF)
    domains: int = 0
    official_test: bool = True
    pools_test: bool = True
    augment: str = "none"
    base: str = ""
    labelling: str = ""
    vocabulary: int = 0

    @property
    def download_bytes(self) -> int:
        """Size of all downloads, about; 0 when unknown."""
        return sum(download.bytes for download in self.downloads)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """What a model gets for one sample, at the default size: ``(C, H, W)`` or ``(L,)``."""
        return self.shape(self.size)

    def shape(self, size: int) -> tuple[int, ...]:
        """Likewise at another size."""
        return (self.channels, size, size) if self.kind == "images" else (size,)
