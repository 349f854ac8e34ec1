import pytest

from pfl_fast.experiment import Experiment

TINY = {"dataset": "mnist", "samples": 240, "image_size": 8, "clients": 3, "model": "mlp", "rounds": 3}


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """Folders of two runs on generated data that stands in for MNIST."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PFL_FAST_DATA", str(folder / "data"))
        patch.setenv("PFL_FAST_CACHE", str(folder / "cache"))
        for method in ("fedavg", "fedcp"):
            out = folder / method
            Experiment(method, **TINY, metrics=("per_class_accuracy",), out=out, log=lambda _: None).run()
    return [folder / "fedavg", folder / "fedcp"]
