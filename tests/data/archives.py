"""Small files in the formats of the real data sets."""

import gzip
import io
import pickle
import tarfile
import zipfile

import numpy as np
from PIL import Image


def pixels(seed, *shape):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def picture(array, form="PNG"):
    file = io.BytesIO()
    Image.fromarray(array).save(file, form)
    return file.getvalue()


def write_zip(file, members):
    file.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)


def write_folder(folder, members):
    for name, data in members.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())


def write_tar(file, members):
    file.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(file, "w:gz") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


def idx(array):
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes()
    return header + array.astype(np.uint8).tobytes()


def write_mnist(folder, train=7, test=3, zipped=True, **replaced):
    """Writes four idx files; returns images and labels."""
    x, y = pixels(1, train + test, 28, 28), np.arange(train + test) % 10
    members = {
        "train-images-idx3-ubyte": idx(x[:train]),
        "train-labels-idx1-ubyte": idx(y[:train]),
        "t10k-images-idx3-ubyte": idx(x[train:]),
        "t10k-labels-idx1-ubyte": idx(y[train:]),
    } | {name.replace("_", "-"): data for name, data in replaced.items()}
    for name, data in members.items():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / (f"{name}.gz" if zipped else name)).write_bytes(gzip.compress(data) if zipped else data)
    return x, y


def cifar10_members(per_batch=3, seed=1):
    """Returns the members of CIFAR-10's python archive, its images ``[N, 32, 32, 3]`` and its labels."""
    members, images, labels = {}, [], []
    for i, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        x, y = pixels(seed + i, per_batch, 3072), [(i + j) % 10 for j in range(per_batch)]
        members[f"cifar-10-batches-py/{name}"] = pickle.dumps(
            {"data": x, "labels": y, "filenames": ["a"] * per_batch}, 2
        )
        images.append(x.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
        labels += y
    members["cifar-10-batches-py/batches.meta"] = b"not even a pickle"
    return members, np.concatenate(images), np.array(labels)


def tiny_members(wnids=("n02", "n01", "n03"), per_class=3, side=64):
    """Returns the members of Tiny-ImageNet's archive, with PNG data, and its images in order of loading."""
    root, members, images = "tiny-imagenet-200/", {}, {}
    for c, wnid in enumerate(wnids):
        for i in range(per_class):
            images[f"{root}train/{wnid}/images/{wnid}_{i}.JPEG"] = pixels(10 * c + i, side, side, 3)
        members[f"{root}train/{wnid}/{wnid}_boxes.txt"] = "boxes"
        images[f"{root}val/images/val_{c}.JPEG"] = pixels(100 + c, side, side, 3)
    members |= {name: picture(image) for name, image in images.items()}
    members[f"{root}val/val_annotations.txt"] = "".join(f"val_{c}.JPEG\t{w}\t0\t0\t9\t9\n" for c, w in enumerate(wnids))
    members[f"{root}wnids.txt"] = "\n".join(wnids)
    members[f"{root}words.txt"] = "n01\tcrane\nn02\tgoldfish, Carassius auratus\nn03\tcrane, bird\nn99\tother"
    return members, np.stack([images[name] for name in sorted(images)])
