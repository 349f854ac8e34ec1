"""scikit-learn's handwritten digits: 1797 real images of 8x8, part of that package, so always there."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from pfl_fast.data.sources.names import DIGITS
from pfl_fast.data.sources.raw import Part, Raw, Source, from_parts


def find(folder: Path) -> tuple[Path, ...]:
    """The file inside scikit-learn, whatever ``folder`` is."""
    del folder
    package = find_spec("sklearn")  # importing it would take seconds
    files = (
        [Path(root) / "datasets" / "data" / "digits.csv.gz" for root in (package.submodule_search_locations or ())]
        if package
        else []
    )
    return tuple(file for file in files if file.is_file())


def read(files: tuple[Path, ...], size: int) -> Raw:
    """All images, 0 to 16 scaled to 0 to 255; there is no official test part."""
    table = np.loadtxt(files[0], delimiter=",")
    images = (table[:, :64].reshape(-1, 8, 8) * (255 / 16)).round().astype(np.uint8)
    return from_parts([Part(str(files[0]), images, table[:, 64])], size, 1, DIGITS)


SOURCE = Source("inside scikit-learn", find, read)
