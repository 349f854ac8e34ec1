"""Files that claim or decode to much more than their size are refused, by name, before memory is taken."""

import bz2
import gzip
import io
import json
import os
import struct
import tarfile
import tracemalloc
import zipfile
import zlib

import numpy as np
import pytest

from pfl_fast.data import bounded
from pfl_fast.data.cache import BrokenCacheError, read_cache, save_dataset
from pfl_fast.data.partition import Partition
from pfl_fast.errors import DataError
from tests.data.archives import (
    cifar10_members,
    idx,
    picture,
    pixels,
    tiny_members,
    write_folder,
    write_mnist,
    write_zip,
)
from tests.data.samples import images, partitioned
from tests.data.test_digits5 import write_originals

LARGE = 20_000_000  # bytes
FREE = 1 << 20  # bytes, in place of 64 MiB, to keep the tests fast


@pytest.fixture(autouse=True)
def little_free(monkeypatch):
    monkeypatch.setattr(bounded, "FREE", FREE)


def compressed_zip(file, members):
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)


def npy_header(shape, dtype="|u1"):
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
    return file.getvalue()


def gzip_idx(raw):
    write_mnist(raw)
    (raw / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(np.zeros((LARGE // 784, 28, 28)))))
    return "mnist", "train-images-idx3-ubyte.gz"


def npz_decompression(raw):
    compressed_zip(raw / "mnist.npz", {"x_train.npy": npy_header((LARGE,)) + bytes(LARGE)})
    return "mnist", "mnist.npz"


def npz_header(raw):
    compressed_zip(raw / "mnist.npz", {"x_train.npy": npy_header((10**12,)) + bytes(10)})
    return "mnist", "x_train.npy"


def bzip2_text(raw):
    write_originals(raw)
    (raw / "usps.bz2").write_bytes(bz2.compress(b"\n" * LARGE))
    return "digits5", "usps.bz2"


def compressed_mat(raw):
    write_originals(raw)
    header = (raw / "train_32x32.mat").read_bytes()[:128]
    content = zlib.compress(bytes(LARGE))
    (raw / "train_32x32.mat").write_bytes(header + struct.pack("<II", 15, len(content)) + content)
    return "digits5", "train_32x32.mat"


def tar_member(raw):
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for name, data in {"readme": bytes(LARGE), **cifar10_members()[0]}.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    (raw / "cifar-10-python.tar.gz").write_bytes(content.getvalue())
    return "cifar10", "cifar-10-python.tar.gz"


def zip_member(raw):
    members, _ = tiny_members()
    compressed_zip(raw / "tiny-imagenet-200.zip", members | {"tiny-imagenet-200/words.txt": bytes(LARGE)})
    return "tiny", "words.txt"


def picture_bomb(raw, form="PNG"):
    members, _ = tiny_members()
    name = next(name for name in members if name.endswith(".JPEG"))
    members[name] = picture(np.zeros((3000, 3000), np.uint8), form)
    write_folder(raw, members)
    return "tiny", name


def jpeg_bomb(raw):
    return picture_bomb(raw, "JPEG")


BOMBS = [gzip_idx, npz_decompression, npz_header, bzip2_text, compressed_mat, tar_member, zip_member, picture_bomb]


@pytest.mark.parametrize("make", [*BOMBS, jpeg_bomb], ids=lambda make: make.__name__)
def test_bombs_are_refused_by_name(raw, load_real, make):
    name, file = make(raw)
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=f"{file}.*: refused, it claims [0-9]+ bytes") as error:
            load_real(name)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "64 MiB and 100 times its size" in str(error.value)
    assert peak < LARGE


def test_data_that_compresses_well_is_read(raw, load_real):
    """Labels in order and black images are compressed by nearly 1000."""
    x = np.zeros((1000, 28, 28), np.uint8)
    np.savez_compressed(raw / "mnist.npz", x_train=x, y_train=np.zeros(1000), x_test=x[:1], y_test=[0])
    assert len(load_real("mnist")) == 1001


def test_an_idx_header_whose_product_overflows(raw, refuses):
    write_mnist(raw, train_images_idx3_ubyte=b"\0\0\x08\x04" + struct.pack(">4I", *[2**16] * 4))
    refuses("mnist", "0 bytes of data for shape")


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")], ids=["pipe", "device"])
def test_only_regular_files_are_read(raw, refuses, make):
    write_folder(raw, tiny_members()[0])
    make(raw / "tiny-imagenet-200/train/n01/images/a.JPEG")
    refuses("tiny", r"images/a\.JPEG: refused, it is not a regular file")


def test_a_zip_member_that_claims_more_than_the_archive(raw, refuses):
    """zipfile would take the claimed memory before it reads."""
    file = raw / "tiny-imagenet-200.zip"
    write_zip(file, tiny_members()[0])
    content = bytearray(file.read_bytes())
    entry = content.index(b"PK\x01\x02")
    content[entry + 20 : entry + 28] = struct.pack("<II", 2**31, 2**31)  # compressed and decompressed size
    file.write_bytes(content)
    refuses("tiny", r"not a readable zip archive \(.* claims 2147483648 of its")


def test_a_zip_member_without_a_name_is_left_out(raw, load_real):
    file = raw / "tiny-imagenet-200.zip"
    write_zip(file, tiny_members()[0] | {"QQQQQQQQ": b""})
    file.write_bytes(file.read_bytes().replace(b"QQQQQQQQ", b"\0QQQQQQQ"))  # a name ends at its first zero byte
    assert len(load_real("tiny")) == 12


def test_a_link_to_nowhere_is_named(raw, refuses):
    write_folder(raw, tiny_members()[0])
    (raw / "tiny-imagenet-200/train/n01/images/a.JPEG").symlink_to("/nowhere")
    refuses("tiny", r"images/a\.JPEG: cannot be read \(No such file or directory\)")


def test_paths_of_archives_are_names_only(raw, load_real, tmp_path):
    """Nothing is unpacked: a member with a path out of the folder is read like any other."""
    members = {f"../../{name}": data for name, data in tiny_members()[0].items()}
    write_zip(raw / "tiny-imagenet-200.zip", members)
    before = sorted(path for path in tmp_path.rglob("*") if "cache" not in path.parts)
    assert len(load_real("tiny")) == 12
    assert sorted(path for path in tmp_path.rglob("*") if "cache" not in path.parts) == before


def claim(file, elements=10**12):
    """Rewrites the header of an npy file, to claim more elements than it has."""
    array = np.load(file)
    file.write_bytes(npy_header((elements,), array.dtype.str) + array.tobytes())


def test_a_saved_partition_that_claims_more_than_it_has(tmp_path):
    partitioned(images(np.arange(9) % 3), "iid", clients=2).save(tmp_path)
    claim(tmp_path / "indices.npy")
    with pytest.raises(DataError, match="the saved partition cannot be used"):
        Partition.load(tmp_path)


def test_a_decoded_data_set_that_claims_more_than_it_has(tmp_path):
    save_dataset(images(np.arange(9) % 3), tmp_path / "set")
    claim(tmp_path / "set" / "y.npy")
    manifest = json.loads((tmp_path / "set" / "manifest.json").read_text())
    manifest["arrays"]["y"]["shape"] = [10**12]
    (tmp_path / "set" / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(BrokenCacheError, match=r"y\.npy"):
        read_cache(tmp_path / "set")


@pytest.mark.parametrize("header", [b"{'descr': ", b"{'descr': '<i8\xff'", b"(" * 100, b"\0" * 60])
def test_headers_that_numpy_cannot_parse(tmp_path, header):
    """NumPy's parser raises tokenize.TokenError and SyntaxError for them."""
    partitioned(images(np.arange(9) % 3), "iid", clients=2).save(tmp_path)
    save_dataset(images(np.arange(9) % 3), tmp_path / "set")
    content = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header
    for file in (tmp_path / "indices.npy", tmp_path / "set" / "y.npy"):
        file.write_bytes(content)
    with pytest.raises(DataError, match="the saved partition cannot be used"):
        Partition.load(tmp_path)
    with pytest.raises(BrokenCacheError, match=r"y\.npy"):
        read_cache(tmp_path / "set")


@pytest.mark.parametrize("version", [b"\x02\x00", b"\x03\x00"])
def test_an_npy_header_that_claims_4_gib_allocates_little(tmp_path, version):
    partitioned(images(np.arange(9) % 3), "iid", clients=2).save(tmp_path)
    save_dataset(images(np.arange(9) % 3), tmp_path / "set")
    content = b"\x93NUMPY" + version + b"\xff\xff\xff\xff{'descr': '<i8', 'fortran_order': False, 'shape': (9,), }\n"
    for file, load, error in (
        (tmp_path / "indices.npy", lambda: Partition.load(tmp_path), DataError),
        (tmp_path / "set" / "y.npy", lambda: read_cache(tmp_path / "set"), BrokenCacheError),
    ):
        file.write_bytes(content)
        tracemalloc.start()
        with pytest.raises(error, match=file.name):
            load()
        assert tracemalloc.get_traced_memory()[1] < 1 << 22
        tracemalloc.stop()


def test_labels_beyond_int64_are_refused(raw, refuses):
    (raw / "train.csv").write_text(f"{10**30},a,b\n")
    (raw / "test.csv").write_text("1,a,b\n")
    refuses("agnews", r"train\.csv: labels are not")


def test_lists_of_test_images_that_are_not_text(raw, load_real):
    write_folder(raw, {f"{domain}/dog/a.png": picture(pixels(0, 5, 5, 3)) for domain in ("photo", "sketch")})
    (raw / "photo_test.txt").write_bytes(b"\xff\xfe\n   \nphoto/dog/a.png 0\n")
    assert load_real("pacs", size=5).test.tolist() == [True, False]


@pytest.mark.parametrize(("error", "message"), [(EOFError(), "EOFError"), (ValueError("\n bad\nworse"), "bad")])
def test_errors_of_parsers_without_a_message_are_named(error, message):
    with (
        pytest.raises(DataError, match=rf"x\.zip: not a readable archive \({message}\)"),
        bounded.reading("x.zip", "archive"),
    ):
        raise error
