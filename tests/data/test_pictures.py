import numpy as np
import pytest
from PIL import Image

from pfl_fast.data.partition import Partition
from pfl_fast.data.pictures import partition_plot, sample_sheet
from pfl_fast.errors import DataError
from tests.data.samples import images, labelled, partitioned


def pixels(file):
    with Image.open(file) as image:
        return np.asarray(image.convert("RGB")).astype(int)


def flat_colours(y, **fields):
    """Images of one colour, which depends on the class."""
    dataset = images(y, shape=(16, 16, 3), **fields)
    dataset.x[:] = np.stack([dataset.y * 20, np.full(len(y), 200), 255 - dataset.y * 20], -1)[:, None, None]
    return dataset


def shown_classes(file, count):
    """Classes of ``flat_colours`` found in a picture."""
    seen = {tuple(colour) for colour in pixels(file).reshape(-1, 3)}
    return [label for label in range(count) if (label * 20, 200, 255 - label * 20) in seen]


@pytest.mark.parametrize("count", [1, 3, 12])
def test_every_class_is_on_the_sheet(tmp_path, count):
    sample_sheet(flat_colours(np.arange(5 * count) % count), tmp_path / "new" / "sheet.png")
    assert shown_classes(tmp_path / "new" / "sheet.png", count) == list(range(count))


def test_domains_have_rows(tmp_path):
    domain = np.arange(40) % 2
    dataset = flat_colours(np.arange(40) // 10 % 4, domain=domain, domains=("photo", "sketch"))
    sample_sheet(dataset, tmp_path / "sheet.png")
    assert shown_classes(tmp_path / "sheet.png", 4) == [0, 1, 2, 3]


def test_many_classes_grey_images_and_classes_without_samples(tmp_path):
    y = np.setdiff1d(np.arange(45), [7])
    dataset = images(y, shape=(8, 9, 1))
    sample_sheet(dataset, tmp_path / "sheet.png")
    assert pixels(tmp_path / "sheet.png").std() > 20


def test_only_images_can_be_drawn(tmp_path):
    with pytest.raises(DataError, match="toy holds features; only images can be drawn"):
        sample_sheet(labelled([0, 1]), tmp_path / "sheet.png")
    with pytest.raises(DataError, match="is empty"):
        sample_sheet(images([]), tmp_path / "sheet.png")
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be written"):
        sample_sheet(images([0, 1]), tmp_path / "file" / "sheet.png")


def ink(file):
    """Mask of the pixels of bubbles, which are more blue than red."""
    picture = pixels(file)
    return picture[..., 2] - picture[..., 0] > 40


def test_bubble_areas_are_proportional_to_samples(tmp_path):
    y = np.zeros(500, dtype=np.int64)
    sizes = []
    for largest in (100, 400):
        train = (np.arange(100), np.arange(100, 100 + largest))
        partition_plot(Partition(train=train, test=[[], []]), y, tmp_path / "plot.png")
        columns = np.flatnonzero(ink(tmp_path / "plot.png").any(0))
        first = np.split(columns, np.flatnonzero(np.diff(columns) > 1) + 1)[0]
        sizes.append(ink(tmp_path / "plot.png")[:, first].sum())
    assert sizes[0] / sizes[1] == pytest.approx(4, rel=0.2)


@pytest.mark.parametrize(("clients", "classes"), [(1, 1), (20, 10), (100, 10), (20, 200), (100, 200)])
def test_all_sizes_can_be_drawn(tmp_path, clients, classes):
    y = np.arange(40 * max(clients, classes)) % classes
    partition = partitioned(labelled(y), "dirichlet", clients=clients, seed=0)
    partition_plot(partition, y, tmp_path / "plot.png", [f"class {label}" for label in range(classes)])
    assert ink(tmp_path / "plot.png").sum() > 100
    assert max(pixels(tmp_path / "plot.png").shape[:2]) < 2500
