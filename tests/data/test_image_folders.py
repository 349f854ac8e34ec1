import numpy as np
import pytest

from pfl_fast.data import load
from pfl_fast.data.domain_catalogue import DOMAINNET_DOMAINS
from tests.data.archives import picture, pixels, write_folder, write_zip

PACS = ("art_painting", "cartoon", "photo", "sketch")


def members(domains, classes, per_class=1, root="", suffix=".png"):
    return {
        f"{root}{domain}/{name}/pic_{i}{suffix}": picture(pixels(100 * d + 10 * c + i, 20, 30, 3))
        for d, domain in enumerate(domains)
        for c, name in enumerate(classes)
        for i in range(per_class)
    }


@pytest.mark.parametrize("form", ["folder", "zip", "nested"])
def test_pacs(raw, load_real, form):
    content = members(PACS, ["house", "dog"], 2, "kfold/")
    if form == "zip":
        write_zip(raw / "pacs" / "PACS.zip", content)
    else:
        write_folder(raw / ("pacs" if form == "folder" else "pacs/PACS"), content)
    data = load_real("pacs", size=17)
    assert data.x.shape == (16, 17, 17, 3)
    assert data.domains == PACS
    assert data.domain.tolist() == [d for d in range(4) for _ in range(4)]
    assert data.y.tolist() == [0, 0, 5, 5] * 4
    assert data.classes[:2] == ("dog", "elephant")
    assert data.mean == (0.485, 0.456, 0.406)
    assert not data.test.any()


def test_office_home_takes_the_classes_it_finds(raw, load_real):
    content = members(("Art", "Clipart", "Product", "Real World"), ("Mop", "Bed", "Alarm_Clock"), suffix=".JPG")
    write_folder(raw / "OfficeHomeDataset_10072016", content)
    data = load_real("office-home", size=5)
    assert data.classes == ("Alarm_Clock", "Bed", "Mop")
    assert data.domains == ("Art", "Clipart", "Product", "Real World")
    assert np.bincount(data.y).tolist() == [4, 4, 4]


def test_other_spellings(raw, load_real, said):
    content = members(("Amazon", "caltech10", "dslr"), ("back_pack", "laptop", "bike", "unknown"))
    write_zip(raw / "office_caltech_10.zip", content)
    data = load_real("office-caltech10", size=3)
    assert data.domains == ("amazon", "caltech", "dslr")
    assert data.y.tolist() == [0, 1, 5] * 3
    assert any("3 of 4 domains, 3 of 10 classes" in line for line in said)
    assert (data.mean, data.std) == ((0.0,) * 3, (1.0,) * 3)


def test_domainnet_takes_ten_classes_and_the_official_test_lists(raw, load_real):
    for domain in ("clipart", "quickdraw"):
        write_zip(raw / "domainnet" / f"{domain}.zip", members((domain,), ("zebra", "bird", "axe"), 3))
    (raw / "domainnet" / "clipart_test.txt").write_text("clipart/bird/pic_1.png 20\nclipart/axe/pic_1.png 3\n")
    (raw / "domainnet" / "quickdraw_test.txt").write_text("quickdraw/zebra/pic_0.png 344\n\n")
    data = load_real("domainnet", size=4)
    assert data.y.tolist() == [0, 0, 0, 9, 9, 9] * 2
    assert np.flatnonzero(data.test).tolist() == [1, 9]


@pytest.mark.parametrize("place", ["domainnet", "domainnet/unpacked"])
def test_unpacked_domainnet_with_its_lists_is_complete(raw, load_real, monkeypatch, place):
    """The lists are names of downloads too, but nothing was interrupted: the folders are the user's."""
    monkeypatch.setattr(load, "fetch", lambda *_args, **_kwargs: pytest.fail("downloads"))
    write_folder(raw / place, members(DOMAINNET_DOMAINS, ("zebra", "bird"), 2))
    for domain in DOMAINNET_DOMAINS:
        (raw / "domainnet" / f"{domain}_test.txt").write_text(f"{domain}/bird/pic_1.png 20\n")
    data = load_real("domainnet", size=4, download=True)
    assert data.source == "real"
    assert data.domains == DOMAINNET_DOMAINS
    assert np.flatnonzero(data.test).tolist() == [1, 5, 9, 13, 17, 21]


def test_files_that_are_not_images_are_left_out(raw, load_real):
    content = members(PACS, ["dog"]) | {
        "photo/dog/Thumbs.db": b"x",
        "photo/dog/._pic.png": b"x",
        "photo/readme.png": b"x",
    }
    write_folder(raw / "pacs", content)
    assert len(load_real("pacs", size=4)) == 4


def test_a_broken_image_is_named_and_leaves_no_cache(raw, refuses):
    write_folder(raw, members(PACS, ["dog"]) | {"sketch/dog/bad.jpg": b"\xff\xd8\xff garbage"})
    refuses("pacs", r"sketch/dog/bad\.jpg: not a readable image", size=8)


def test_an_empty_archive_is_refused(raw, refuses):
    write_zip(raw / "PACS.zip", {"readme.txt": "hello"})
    refuses("pacs", r"PACS\.zip: no images")


def test_one_domain_alone_is_not_taken(raw, refuses):
    """DomainNet's sketches in a data folder are not PACS."""
    write_folder(raw, members(("sketch",), ["dog"]))
    refuses("pacs", "pacs: not found")
