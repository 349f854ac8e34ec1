"""scikit-learn's handwritten digits: 1797 images of 8x8 pixels, installed with scikit-learn."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from pfl_fast.data import bounded
from pfl_fast.data.sources.names import DIGITS
from pfl_fast.data.sources.raw import ImageFile, Raw, Source, from_image_files


def find(folder: Path) -> tuple[Path, ...]:
    """Returns the file inside scikit-learn; ``folder`` is not used."""
    del folder
    package = find_spec("sklearn")  # importing it would take seconds
    files = (
        [Path(root) / "datasets" / "data" / "digits.csv.gz" for root in (package.submodule_search_locations or ())]
        if package
        else []
    )
    return tuple(file for file in files if file.is_file())


def read(files: tuple[Path, ...], size: int) -> Raw:
    """Reads all images, scaled from 0..16 to 0..255; there is no official test part."""
    with bounded.reading(files[0], "table of digits"):
        table = np.loadtxt(files[0], delimiter=",")
    images = (table[:, :64].reshape(-1, 8, 8) * (255 / 16)).round().astype(np.uint8)
    return from_image_files([ImageFile(str(files[0]), images, table[:, 64])], size, 1, DIGITS)


SOURCE = Source("inside scikit-learn", find, read)
