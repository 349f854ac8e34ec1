import json
import multiprocessing
import os
import shutil
from dataclasses import replace

import numpy as np
import pytest

from pfl_fast.data import catalogue
from pfl_fast.data.download import file_checksum
from pfl_fast.data.entry import Download
from pfl_fast.data.load import load
from pfl_fast.data.sources import idx
from pfl_fast.errors import DataError, DataRequestError, PflFastError
from tests.data.archives import pixels, tiny_members, write_folder, write_mnist


@pytest.fixture
def prepared(tmp_path):
    """Returns the folders of decoded data sets, in the user's cache."""
    return lambda: sorted(path for path in (tmp_path / "cache" / "prepared").iterdir() if path.is_dir())


def sizes(folders):
    return [folder.name.rpartition("-")[0] for folder in folders]


def test_data_is_decoded_once_and_then_memory_mapped(raw, load_real, said, prepared):
    x, _ = write_mnist(raw)
    first, second = load_real("mnist"), load_real("mnist")
    assert sum("preparing" in line for line in said) == 1
    assert isinstance(second.x, np.memmap)
    assert np.array_equal(first.x, second.x)
    (folder,) = prepared()
    assert folder.name.startswith("mnist-28-")
    assert [line for line in said if str(folder) in line] == [said[0]], "one line says where"
    assert sorted(path.name for path in raw.iterdir()) == sorted(f"{name}.gz" for name in idx.FILES)
    second.x[:] = 0  # the file is not written through
    assert np.array_equal(load_real("mnist").x[..., 0], x)


def test_each_size_has_its_own_cache(raw, load_real, prepared):
    write_mnist(raw)
    assert load_real("mnist").x.shape[1] == 28
    assert load_real("mnist", size=7).x.shape[1] == 7
    assert sizes(prepared()) == ["mnist-28", "mnist-7"]


def test_the_cache_is_used_without_the_files(raw, load_real):
    write_mnist(raw)
    load_real("mnist")
    for file in raw.glob("*.gz"):
        file.unlink()
    assert len(load_real("mnist")) == 10


def test_changed_files_are_decoded_again(raw, load_real, said):
    write_mnist(raw)
    load_real("mnist")
    write_mnist(raw, train=13)
    assert len(load_real("mnist")) == 16
    assert sum("made from other files" in line for line in said) == 1


def test_another_version_of_the_reader_decodes_again(raw, load_real, said, monkeypatch):
    write_mnist(raw)
    load_real("mnist")
    entry = catalogue.DATASETS["mnist"]
    newer = replace(entry, sources=tuple(replace(source, version=2) for source in entry.sources))
    monkeypatch.setitem(catalogue.DATASETS, "mnist", newer)
    assert len(load_real("mnist")) == len(load_real("mnist")) == 10
    assert sum("preparing" in line for line in said) == 2


def test_manifest(raw, load_real, prepared):
    write_mnist(raw)
    load_real("mnist")
    manifest = json.loads((prepared()[0] / "manifest.json").read_text())
    assert manifest["format"] == 1
    assert manifest["arrays"]["x"] == {"shape": [10, 28, 28, 1], "dtype": "uint8"}
    assert len(manifest["sources"]) == 4
    assert manifest["sources"][0]["checksum"].startswith("sha256:")
    assert manifest["sources"][0]["bytes"] == (raw / "train-images-idx3-ubyte.gz").stat().st_size


def truncate(name, keep):
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:keep])


def edit(**changes):
    def change(folder):
        manifest = json.loads((folder / "manifest.json").read_text())
        (folder / "manifest.json").write_text(json.dumps(manifest | changes))

    return change


@pytest.mark.parametrize(
    "damage",
    [
        truncate("x.npy", -1),
        truncate("x.npy", 0),
        truncate("y.npy", -8),
        truncate("manifest.json", 100),
        truncate("manifest.json", 0),
        edit(format=2),
        edit(format=None),
        edit(arrays={}),
        edit(arrays={"x": {"shape": [9, 28, 28, 1], "dtype": "uint8"}}),
        edit(classes=None),
        lambda folder: (folder / "manifest.json").unlink(),
        lambda folder: (folder / "test.npy").unlink(),
        lambda folder: (folder / "manifest.json").write_text("[]"),
        lambda folder: np.save(folder / "y.npy", np.array([print], dtype=object)),
        lambda folder: np.save(folder / "y.npy", np.zeros(10, np.float32)),
    ],
)
def test_a_damaged_cache_is_decoded_again(raw, load_real, said, damage, prepared):
    x, y = write_mnist(raw)
    load_real("mnist")
    damage(prepared()[0])
    data = load_real("mnist")
    assert np.array_equal(data.x[..., 0], x)
    assert data.y.tolist() == y.tolist()
    assert sum("cannot be used" in line for line in said) == 1


def test_a_damaged_cache_without_files_is_an_error(raw, load_real, prepared):
    write_mnist(raw)
    load_real("mnist")
    for file in raw.glob("*.gz"):
        file.unlink()
    truncate("x.npy", 500)(prepared()[0])
    with pytest.raises(DataError, match="not found"):
        load_real("mnist")


def test_a_half_written_cache_is_not_used(raw, load_real, prepared):
    write_mnist(raw)
    load_real("mnist")
    (folder,) = prepared()
    shutil.rmtree(folder)
    left = folder.with_name(f".{folder.name}.tmp")
    left.mkdir()
    (left / "x.npy").write_bytes(b"half")
    assert len(load_real("mnist")) == 10
    assert not left.exists()


def test_a_read_only_folder_is_not_changed(raw, load_real, prepared):
    write_mnist(raw)
    before = sorted(raw.rglob("*"))
    raw.chmod(0o555)
    try:
        assert len(load_real("mnist")) == 10
    finally:
        raw.chmod(0o755)
    assert sorted(raw.rglob("*")) == before
    assert sizes(prepared()) == ["mnist-28"]


def test_two_data_folders_have_separate_caches(raw, tmp_path, load_real, prepared):
    other = tmp_path / "other"
    write_mnist(raw)
    write_mnist(other, train=1, test=1)
    assert [len(load_real("mnist", folder=f)) for f in (raw, other, raw)] == [10, 2, 10]
    assert len(prepared()) == 2


def test_no_writable_folder_is_an_error(raw, tmp_path, load_real, monkeypatch):
    write_mnist(raw)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PFL_FAST_CACHE", str(tmp_path / "file"))
    with pytest.raises(DataError, match="set PFL_FAST_CACHE"):
        load_real("mnist")


def test_a_cache_that_others_may_write_to_is_refused(raw, load_real, prepared):
    write_mnist(raw)
    load_real("mnist")
    prepared()[0].parent.chmod(0o777)
    for size in (28, 9):
        with pytest.raises(PflFastError, match="writable by others"):
            load_real("mnist", size=size)


def test_a_missing_data_folder_is_refused_and_not_made(tmp_path, load_real):
    for name in ("mnist", "synthetic"):
        with pytest.raises(DataError, match=r"the data folder .*/mistyped does not exist"):
            load_real(name, folder=tmp_path / "mistyped")
    assert not (tmp_path / "mistyped").exists()


def rewrite(file):
    """Writes other content of the same size."""
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    os.utime(file, ns=(0, 5))  # the clock may be too coarse to tell the two writes apart


def test_files_changed_without_a_change_of_size_are_decoded_again(raw, load_real, said):
    _, y = write_mnist(raw, zipped=False)
    assert load_real("mnist").y.tolist() == y.tolist()
    rewrite(raw / "train-labels-idx1-ubyte")
    assert load_real("mnist").y.tolist() == [*y[:6], y[6] ^ 1, *y[7:]]
    assert sum("made from other files" in line for line in said) == 1


@pytest.mark.parametrize("change", ["added", "deleted", "replaced"])
def test_folders_whose_images_changed_are_decoded_again(raw, load_real, change):
    members, _ = tiny_members()
    write_folder(raw, members)
    folder = raw / "tiny-imagenet-200/train/n01/images"
    before = load_real("tiny")
    if change == "added":
        shutil.copy(folder / "n01_0.JPEG", folder / "n01_9.JPEG")
    elif change == "deleted":
        (folder / "n01_0.JPEG").unlink()
    else:
        shutil.copy(folder / "n01_1.JPEG", folder / "n01_0.JPEG")
    after = load_real("tiny")
    assert len(after) - len(before) == {"added": 1, "deleted": -1, "replaced": 0}[change]
    assert change != "replaced" or np.array_equal(after.x[0], before.x[1])


def test_files_placed_by_hand_are_compared_with_the_published_checksum(raw, load_real, said, monkeypatch):
    write_mnist(raw)
    load_real("mnist")
    assert "train-images-idx3-ubyte.gz" in said[-1]
    assert "not the published file, by its checksum" in said[-1]
    entry = catalogue.DATASETS["mnist"]
    mine = tuple(replace(item, checksum=file_checksum(raw / item.file, "md5")) for item in entry.downloads)
    monkeypatch.setitem(catalogue.DATASETS, "mnist", replace(entry, downloads=mine))
    said.clear()
    load_real("mnist", size=5)
    assert "preparing" in said[-1]


def _load_in_process(folder, barrier, results):
    said = []
    barrier.wait()
    data = load("mnist", folder=folder, download=False, real_only=True, log=said.append)
    results.put((int(data.x.sum()), sum("preparing" in line for line in said)))


def test_two_processes_decode_once(raw):
    x, _ = write_mnist(raw, train=997)
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(2), context.Queue()
    processes = [context.Process(target=_load_in_process, args=(raw, barrier, results)) for _ in range(2)]
    for process in processes:
        process.start()
    got = [results.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    assert [total for total, _ in got] == [int(x.sum())] * 2
    assert sum(preparations for _, preparations in got) == 1


def test_missing_data_has_instructions(load_real, raw):
    with pytest.raises(DataError) as error:
        load_real("tiny")
    for part in (str(raw / "tiny"), "https://cs231n.stanford.edu/tiny-imagenet-200.zip", "md5:90528d", "data get tiny"):
        assert part in str(error.value)
    with pytest.raises(DataError, match=rf"Google Drive.*into {raw}/office-home"):
        load_real("office-home")
    assert not list(raw.iterdir())


@pytest.mark.parametrize("name", [n for n, e in catalogue.DATASETS.items() if e.downloads])
def test_stand_ins_have_the_shape_of_the_real_set(raw, name):
    entry, said = catalogue.DATASETS[name], []
    data = load(name, folder=raw, download=False, stand_in_samples=211, log=said.append)
    assert data.source == "synthetic stand-in"
    assert (len(data), data.input_shape, data.modality) == (211, entry.input_shape, entry.modality)
    assert (len(data.classes), len(data.domains)) == (entry.classes, entry.domains)
    assert data.y.max() == min(entry.classes, 211) - 1
    assert (data.mean, data.std) == (entry.mean, entry.std)
    assert data.test.any() == entry.official_test
    assert "SYNTHETIC STAND-IN of 211" in said[-1]
    assert not list(raw.iterdir())


def test_stand_ins_are_not_huge():
    first, again = (load("digits5", size=5, download=False, log=lambda _: None, seed=3) for _ in range(2))
    assert len(first) == 6000
    assert np.array_equal(first.x, again.x)


@pytest.mark.parametrize("name", ["cifar100", "cifar100-coarse"])
def test_cifar100_stand_in_has_both_labellings(name):
    data = load(name, download=False, stand_in_samples=300, log=lambda _: None)
    assert data.labels.keys() == {"fine", "coarse"}
    assert np.array_equal(data.y, data.labels["coarse" if name.endswith("coarse") else "fine"])


def test_real_data_has_no_number_of_samples_to_generate(load_real):
    with pytest.raises(DataRequestError, match=r"samples=11.*digits was found; per_client"):
        load_real("digits", stand_in_samples=11)


def test_synthetic_and_digits_need_no_download(load_real):
    assert load_real("synthetic", stand_in_samples=11).source == "synthetic"
    digits = load_real("digits")
    assert (len(digits), digits.source, digits.input_shape) == (1797, "real", (1, 8, 8))
    assert digits.x.max() == 255
    assert np.bincount(digits.y).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


@pytest.fixture
def served_mnist(server, tmp_path, monkeypatch):
    """The catalogue's mnist, as one npz file on a local server."""
    np.savez(tmp_path / "m.npz", x_train=pixels(0, 5, 28, 28), y_train=[0] * 5, x_test=pixels(1, 1, 28, 28), y_test=[9])
    server.content = (tmp_path / "m.npz").read_bytes()
    entry = replace(catalogue.DATASETS["mnist"], downloads=(Download("mnist.npz", (server.url,), None, 9),))
    monkeypatch.setitem(catalogue.DATASETS, "mnist", entry)
    return server


def test_downloaded_files_are_decoded(served_mnist, raw, load_real):
    served_mnist.faults = ("cut",)
    data = load_real("mnist", download=True)
    assert data.y.tolist() == [0] * 5 + [9]
    assert (raw / "mnist" / "mnist.npz").is_file()
    load_real("mnist", download=True)
    assert len(served_mnist.requests) == 2


@pytest.mark.usefixtures("served_mnist")
def test_files_are_located_once_and_again_after_a_download(load_real, monkeypatch):
    folders = []
    locate = catalogue.locate
    monkeypatch.setattr(catalogue, "locate", lambda entry, folder: folders.append(folder) or locate(entry, folder))
    load_real("mnist", download=True)
    assert len(folders) == 2
    load_real("mnist", download=True)
    assert len(folders) == 3


def test_existing_files_are_not_downloaded(served_mnist, raw, load_real):
    write_mnist(raw)
    assert len(load_real("mnist", download=True)) == 10
    assert not served_mnist.requests


def test_failed_download(served_mnist, said, load_real):
    served_mnist.faults = (404,) * 9
    with pytest.raises(DataError, match="the server answers 404"):
        load_real("mnist", download=True)
    data = load_real("mnist", download=True, real_only=False, stand_in_samples=7)
    assert data.source == "synthetic stand-in"
    assert "404" in said[-1]


def test_an_interrupted_download_is_completed_before_use(served_mnist, raw, load_real, monkeypatch):
    """Some of the domains' archives are there, because a download was interrupted."""
    entry = catalogue.DATASETS["mnist"]
    more = replace(entry, downloads=(*entry.downloads, Download("more.npz", (served_mnist.url,))))
    monkeypatch.setitem(catalogue.DATASETS, "mnist", more)
    (raw / "mnist").mkdir()
    shutil.copy(raw.parent / "m.npz", raw / "mnist" / "mnist.npz")
    load_real("mnist", download=True)
    assert (raw / "mnist" / "more.npz").is_file()


def test_unknown_names_and_sizes(load_real):
    with pytest.raises(DataError, match="unknown data set 'cifar-10'; did you mean 'cifar10'"):
        load_real("cifar-10")
    with pytest.raises(ValueError, match="size must be at least 1"):
        load_real("mnist", size=0)
