import numpy as np
import pytest

from tests.data.archives import picture, pixels, tiny_members, write_folder, write_zip

FILE = "tiny-imagenet-200.zip"
ROOT = "tiny-imagenet-200/"


@pytest.mark.parametrize("unpacked", [False, True])
def test_images_labels_and_names(raw, load_real, said, unpacked):
    members, images = tiny_members()
    if unpacked:
        write_folder(raw, members)
    else:
        write_zip(raw / FILE, members)
    data = load_real("tiny")
    assert np.array_equal(data.x, images)
    assert data.y.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 1, 0, 2]
    assert data.test.tolist() == [False] * 9 + [True] * 3
    assert data.classes == ("crane (n01)", "goldfish", "crane (n03)")
    assert data.source == "real"
    assert any("3 of 200 classes" in line for line in said)


def test_wnids_decide_the_classes_and_stray_folders_are_reported(raw, load_real, said):
    members, images = tiny_members()
    image = picture(pixels(7, 64, 64, 3))
    write_zip(raw / FILE, members | {f"{ROOT}train/{stray}/images/a.JPEG": image for stray in ("backup", "n77")})
    data = load_real("tiny")
    assert np.array_equal(data.x, images)
    assert data.classes == ("crane (n01)", "goldfish", "crane (n03)")
    note = f"{FILE}: 3 of 200 classes; left out train/backup, train/n77: not in wnids.txt"
    assert any(note in line for line in said)


def test_a_listed_class_without_training_images_is_reported(raw, load_real, said):
    members, _ = tiny_members()
    write_zip(raw / FILE, {name: data for name, data in members.items() if "train/n02" not in name})
    data = load_real("tiny")
    assert (len(data.classes), sorted(set(data.y[~data.test]))) == (3, [0, 2])
    assert any("no training images of n02" in line for line in said)


@pytest.mark.parametrize("size", [1, 17, 64])
def test_other_sizes_and_grey_images(raw, load_real, size):
    members, _ = tiny_members(per_class=1, side=23)
    members[f"{ROOT}train/n01/images/n01_0.JPEG"] = picture(pixels(1, 64, 64))
    write_zip(raw / FILE, members)
    data = load_real("tiny", size=size)
    assert data.x.shape == (6, size, size, 3)
    assert np.array_equal(data.x[0, ..., 0], data.x[0, ..., 2])


def broken(change):
    members, _ = tiny_members()
    change(members)
    return members


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.pop(f"{ROOT}wnids.txt"), r"tiny-imagenet-200\.zip: no wnids\.txt"),
        (lambda m: m.pop(f"{ROOT}val/images/val_1.JPEG"), r"val_1\.JPEG: missing"),
        (lambda m: m.pop(f"{ROOT}val/val_annotations.txt"), r"val_annotations\.txt: missing"),
        (lambda m: m.update({f"{ROOT}val/val_annotations.txt": "val_0.JPEG\tn77\t"}), "val_0.JPEG has class n77"),
        (lambda m: m.update({f"{ROOT}val/val_annotations.txt": "val_0.JPEG"}), "val_annotations"),
        (lambda m: m.update({f"{ROOT}train/n02/images/n02_1.JPEG": b""}), r"n02_1\.JPEG: not a readable image"),
        (
            lambda m: m.update({f"{ROOT}train/n02/images/n02_1.JPEG": m[f"{ROOT}train/n02/images/n02_1.JPEG"][:900]}),
            r"n02_1\.JPEG: not a readable image",
        ),
        (lambda m: [m.pop(name) for name in list(m) if "/train/" in name], "no training images"),
    ],
)
def test_broken_archives_leave_no_cache(raw, refuses, change, message):
    write_zip(raw / FILE, broken(change))
    refuses("tiny", message)


@pytest.mark.parametrize("keep", [0, 100, 5000])
def test_a_truncated_archive(raw, refuses, keep):
    write_zip(raw / FILE, tiny_members()[0])
    (raw / FILE).write_bytes((raw / FILE).read_bytes()[:keep])
    refuses("tiny", r"tiny-imagenet-200\.zip: not a readable zip.*delete it and fetch it again")


def test_a_flipped_bit_is_noticed(raw, refuses):
    write_zip(raw / FILE, tiny_members()[0])
    data = bytearray((raw / FILE).read_bytes())
    data[300] ^= 1
    (raw / FILE).write_bytes(data)
    refuses("tiny", "corrupt")
