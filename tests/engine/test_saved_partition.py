"""A run saves its partition, and another run can use it."""

from pfl_fast.data.partition import Partition
from pfl_fast.experiment import Experiment
from tests.engine import small_experiments as small


def test_a_run_saves_its_partition(tmp_path):
    experiment = small.image_experiment(out=tmp_path / "run")
    assert Partition.load(tmp_path / "run" / "partition").hash == experiment.partition.hash


def test_a_saved_partition_is_loaded_from_its_folder(tmp_path):
    settings = {"dataset": small.synthetic_images(), "model": "mlp", "clients": 4, "log": lambda _: None}
    first = Experiment("local", partition="iid", seed=5, out=tmp_path / "run", **settings)
    again = Experiment("local", partition=str(tmp_path / "run" / "partition"), seed=6, **settings)
    other = Experiment("local", partition="iid", seed=6, **settings)
    assert again.partition.hash == first.partition.hash != other.partition.hash
