"""Data sets, partitions, models and methods that are objects: accepted or refused, and written as objects."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Subset, TensorDataset

from pfl_fast import config
from pfl_fast.data.partition import Partition
from pfl_fast.errors import ConfigError, PflFastError
from pfl_fast.experiment import Experiment
from pfl_fast.methods import METHODS
from tests.engine import small_experiments as small

pytestmark = pytest.mark.usefixtures("one_core")
X, Y = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32), np.arange(40) % 3
LISTS = [list(range(0, 40, 2)), list(range(1, 40, 2))]
KINDS = {
    "arrays": (X, Y),
    "tensors": [torch.from_numpy(X), torch.from_numpy(Y)],
    "TensorDataset": TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)),
    "Subset": Subset(TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)), range(40)),
    "samples": [(x, int(y)) for x, y in zip(X, Y, strict=True)],
}


class Network(nn.Sequential):
    """A model class, built from the shape of a sample and the number of classes."""

    def __init__(self, input_shape, classes):
        super().__init__(nn.Flatten(), nn.Linear(int(np.prod(input_shape)), 4), nn.ReLU(), nn.Linear(4, classes))


class FedAvg(METHODS["fedavg"]):
    """A method of the user with the name of another one."""


def experiment(method="fedavg", **values):
    quiet = {"rounds": 2, "executor": "sequential", "device": "cpu", "log": lambda _: None}
    return Experiment(method, **{"dataset": (X, Y), "partition": LISTS, "model": "mlp", **quiet, **values})


def untimed(running):
    running.run()
    running.close()
    return small.untimed_records(running)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_data_set_trains_on_its_samples(kind):
    running = experiment(dataset=KINDS[kind])
    assert np.array_equal(running.dataset.x, X)
    assert np.array_equal(running.dataset.y, Y)
    assert running.dataset.source == "imported"
    assert untimed(running) == untimed(experiment())


@pytest.mark.parametrize(
    ("argument", "value", "message"),
    [
        ("dataset", 3, "dataset: must be the name or path of a data set(.|\n)*TensorDataset; got int"),
        ("dataset", X, "got ndarray"),
        ("dataset", {"x": X, "y": Y}, "got dict"),
        ("dataset", [1, 2, 3], "sample 0 must be a pair"),
        ("dataset", Path("mnist"), "got PosixPath"),
        ("partition", 5, "partition: must be the name of a rule(.|\n)*for each client; got int"),
        ("partition", {"a": [1]}, "got dict"),
        ("partition", [], "got no clients"),
        ("partition", [0, 1], "client 0 has no list of whole numbers"),
        ("partition", [[0.5], [1]], "client 0 has no list of whole numbers"),
        ("partition", [[0, 1], ([2], [3])], "some of both"),
        ("model", 3, "model: must be the name of a model(.|\n)*got the object 3"),
        ("method", 3, "method: must be the name of a method or a subclass(.|\n)*got the object 3"),
        ("method", nn.Linear, "method: must be"),
    ],
)
def test_an_argument_of_another_kind_is_a_type_error_with_the_accepted_kinds(argument, value, message):
    with pytest.raises(TypeError, match=message):
        experiment(**{argument: value})


def test_each_client_holds_its_listed_samples():
    running = experiment(partition=LISTS, validation=0.2, seed=3)
    for client, listed in enumerate(LISTS):
        lots = [getattr(running.partition, split)[client] for split in ("train", "test", "validation")]
        assert sorted(np.concatenate(lots).tolist()) == listed
        assert [len(lot) for lot in lots] == [12, 5, 3]
    other = experiment(partition=[np.array(index) for index in LISTS], validation=0.2, seed=4)
    assert other.partition.hash != running.partition.hash == experiment(validation=0.2, seed=3).partition.hash


def test_pairs_are_training_and_test_samples():
    running = experiment(partition=[([0, 1, 2], [3]), [torch.tensor([5, 4]), np.array([7])]])
    assert [index.tolist() for index in running.partition.train] == [[0, 1, 2], [5, 4]]
    assert [index.tolist() for index in running.partition.test] == [[3], [7]]


@pytest.mark.parametrize(
    ("partition", "message"),
    [
        ([[0, 40], [1]], "client 0 lists samples 0 to 40; expected each sample once, from 0 to 39"),
        ([[0], [1, -1]], "client 1 lists samples -1 to 1"),
        ([[0, 0], [1]], "client 0 lists samples 0 to 0"),
        ([([0, 1], [1]), ([2], [3])], "client 0 has no training samples, or trains on samples of its test"),
        ([([], [1]), ([2], [3])], "client 0 has no training samples"),
    ],
)
def test_impossible_lists_are_refused(partition, message):
    with pytest.raises(PflFastError, match=message):
        experiment(partition=partition)


def test_a_path_is_the_folder_of_a_saved_partition(tmp_path):
    first = experiment()
    first.partition.save(tmp_path / "saved")
    assert experiment(partition=tmp_path / "saved").partition.hash == first.partition.hash


def test_a_class_of_models_is_built_for_the_data():
    running = experiment(model=Network, head="3")
    assert running.settings.model == f"{__name__}:Network"
    assert next(tuple(p.shape) for p in running.method.context.backbone.parameters()) == (4, 6)


def test_config_says_what_the_objects_were_and_is_no_other_run(tmp_path):
    experiment(FedAvg, model=Network((6,), 3), head="3", out=tmp_path / "run").close()
    values = config.read(tmp_path / "run" / "config.toml")
    assert values["dataset"].startswith("own object: own data, 40 samples, hash ")
    assert values["partition"].startswith("own object: lists, 2 clients, hash ")
    assert values["model"] == f"own object: {__name__}:Network, 43 parameters"
    assert values["method"] == f"own object: {__name__}:fedavg"


@pytest.mark.parametrize("kept", ["method", "dataset", "partition", "model"])
def test_a_file_with_an_object_cannot_be_run(tmp_path, kept):
    experiment(FedAvg, model=Network((6,), 3), head="3", out=tmp_path / "run").close()
    values = config.read(tmp_path / "run" / "config.toml")
    objects = {"method": FedAvg, "dataset": (X, Y), "partition": LISTS, "model": Network((6,), 3)}
    del objects[kept]
    with pytest.raises(ConfigError, match=rf"{kept}: this run used an object passed from Python(.|\n)*pass it again"):
        Experiment(**{**values, **objects}, log=lambda _: None)


def interrupted_run(folder, **values):
    running = experiment(out=folder, checkpoint_seconds=0, **values)
    next(running.rounds())
    running.close()


def test_a_run_on_own_data_is_not_resumed_without_it_or_with_other_data(tmp_path):
    interrupted_run(tmp_path / "run")
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    with pytest.raises(ConfigError, match=r"dataset: this run used an object(.|\n)*own data, 40 samples"):
        Experiment.resume(tmp_path / "run", log=lambda _: None)
    with pytest.raises(PflFastError, match=r"dataset: was 'own object(.|\n)*is 'own object"):
        Experiment.resume(tmp_path / "run", log=lambda _: None, dataset=(X, (Y + 1) % 3))
    with pytest.raises(PflFastError, match=r"dataset: was 'own object(.|\n)*is 'own object"):
        Experiment.resume(tmp_path / "run", log=lambda _: None, dataset=(X + 1, Y))
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before
    again = Experiment.resume(tmp_path / "run", log=lambda _: None, dataset=TensorDataset(*KINDS["tensors"]))
    assert again.state.rounds_done == 1


def test_listed_clients_are_read_from_the_run_folder(tmp_path):
    interrupted_run(tmp_path / "run")
    again = Experiment.resume(tmp_path / "run", log=lambda _: None, dataset=(X, Y))
    assert untimed(again) == untimed(experiment())
    (tmp_path / "run" / "partition" / "indices.npy").write_bytes(b"")
    with pytest.raises(PflFastError, match=r"partition: missing or damaged(.|\n)*resume\(folder, partition=\.\.\.\)"):
        Experiment.resume(tmp_path / "run", log=lambda _: None, dataset=(X, Y))
    Experiment.resume(tmp_path / "run", log=lambda _: None, dataset=(X, Y), partition=LISTS).run()
    assert Partition.load(tmp_path / "run" / "partition").clients == 2


def test_a_run_outlives_the_folder_that_its_partition_came_from(tmp_path):
    experiment().partition.save(tmp_path / "saved")
    interrupted_run(tmp_path / "run", partition=tmp_path / "saved")
    shutil.rmtree(tmp_path / "saved")
    again = Experiment.resume(tmp_path / "run", log=lambda _: None, dataset=(X, Y))
    assert untimed(again) == untimed(experiment())
