"""``pfl-fast data`` and ``pfl-fast train`` make the same partition from the same options."""

import re
from dataclasses import fields

import numpy as np
import pytest

from pfl_fast import assembly
from pfl_fast.config import Settings
from pfl_fast.data import catalogue
from pfl_fast.data.partition import Partition, PartitionSpec
from tests.data.archives import pixels

WORDS = {
    "plain": ["digits", "--clients", 4, "--beta", 0.5, "--seed", 3],
    "legacy": ["digits", "--clients", 4, "--legacy-partition", "--batch-size", 5],
    "legacy with a seed": ["digits", "--clients", 4, "--legacy-partition", "--partition-seed", 2],
    "domains": ["digits5", "--seed", 3],
    "domains and a rule": ["digits5", "--partition", "iid", "--draw-clients", 2, "--min-samples", 3, "--image-size", 9],
}


@pytest.fixture
def two_domains(tmp_path):
    """Digits-Five with two of its domains, in the data folder."""
    (tmp_path / "data").mkdir()
    arrays = {}
    for number, domain in enumerate(("MNIST", "USPS")):
        for split, count in (("train", 90), ("test", 30)):
            arrays[f"{domain}_x_{split}"] = pixels(number, count, 8, 8)
            arrays[f"{domain}_y_{split}"] = np.arange(count) % 10
    np.savez(tmp_path / "data" / "digits5.npz", **arrays)


@pytest.mark.parametrize("words", WORDS.values(), ids=WORDS)
@pytest.mark.usefixtures("two_domains")
def test_data_and_train_make_the_same_partition(cli, words):
    name, *options = words
    cli("train", "local", "--dataset", name, "--model", "mlp", "--rounds", 1, "--out", "run", *options)
    pages = [
        cli("data", "partition", name, "--out", "saved", *options).stdout,
        cli("data", "plot", name, "--out", "plot.png", *options).stdout,
        cli("data", "export", name, "exported", *options).stdout,
    ]
    expected = Partition.load("run/partition")
    assert {re.search("hash ([0-9a-f]+)", page)[1] for page in pages} == {expected.hash}
    assert Partition.load("saved").hash == expected.hash


@pytest.mark.usefixtures("two_domains")
def test_defaults_of_domains_and_of_legacy_partitions(cli):
    assert cli("data", "plot", "digits5", "--out", "plot.png").stdout.startswith("domain: 2 clients")
    cli("data", "partition", "digits", "--legacy-partition", "--clients", 4, "--seed", 7, "--out", "saved")
    assert Partition.load("saved").settings["seed"] == 1


def test_all_partition_options_are_settings_of_train():
    assert {f.name for f in fields(PartitionSpec)} <= {f.name for f in fields(Settings)}
    assert (Settings.partition, Settings.seed) == (PartitionSpec.partition, PartitionSpec.seed)


def test_settings_are_resolved_and_files_located_once(cli, monkeypatch):
    calls = []

    def count(module, name):
        original = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *args, **more: calls.append(name) or original(*args, **more))

    count(assembly, "resolve")
    count(catalogue, "locate")
    train = ["train", "local", "--dataset", "digits", "--model", "mlp", "--rounds", 1, "--clients", 3]
    for _ in ("decodes the files", "opens the decoded form"):
        cli(*train)
        assert sorted(calls) == ["locate", "resolve"]
        calls.clear()
    cli("data", "plot", "digits", "--out", "plot.png")
    assert calls == ["locate"]
