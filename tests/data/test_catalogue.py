import re

import pytest

from pfl_fast.data.catalogue import DATASETS, entry, locate
from pfl_fast.errors import DataError

NAMES = [
    "tiny", "mnist", "fashion-mnist", "cifar10", "cifar100", "cifar100-coarse", "agnews", "digits5",
    "office-caltech10", "domainnet", "office-home", "pacs", "digits", "synthetic",
]  # fmt: skip


def test_all_names_are_there():
    assert list(DATASETS) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_entry_has_a_homepage_and_files(name):
    found = entry(name)
    assert found.title
    assert found.licence
    assert found.homepage
    assert found.classes > 1
    assert found.samples > found.classes
    assert len(found.mean) == len(found.std) == found.channels
    assert all(value > 0 for value in found.std)
    assert found.augment in ("none", "flip-rotate", "resized-crop-flip")
    for download in found.downloads:
        assert bool(download.urls) != bool(found.by_hand)
        assert all(url.startswith("https://") and url.endswith(download.file) for url in download.urls)
        assert download.checksum is None or re.fullmatch(r"md5:[0-9a-f]{32}|sha256:[0-9a-f]{64}", download.checksum)


def test_checksums_are_different():
    found = [d.checksum for n, e in DATASETS.items() for d in e.downloads if d.checksum and n != "cifar100-coarse"]
    assert len(set(found)) == len(found)


@pytest.mark.parametrize("name", [name for name in NAMES if DATASETS[name].downloads])
def test_nothing_is_found_in_an_empty_or_missing_folder(name, tmp_path):
    assert locate(entry(name), tmp_path) is None
    assert locate(entry(name), tmp_path / "missing") is None


def test_defaults_of_the_papers():
    sizes = {name: DATASETS[name].size for name in ("digits5", "office-caltech10", "domainnet", "office-home", "pacs")}
    assert sizes == {"digits5": 32, "office-caltech10": 256, "domainnet": 256, "office-home": 224, "pacs": 224}
    assert entry("domainnet").augment == entry("office-caltech10").augment == "flip-rotate"
    assert (entry("domainnet").mean, entry("domainnet").std) == ((0.0,) * 3, (1.0,) * 3)


def test_unknown_names():
    with pytest.raises(DataError, match=r"unknown data set 'zzz'; see 'pfl-fast datasets'"):
        entry("zzz")
