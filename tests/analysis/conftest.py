import pytest

from pfl_fast import Experiment


def train(folder, method, **values):
    """Trains a small run on handwritten digits, with snapshots of its rounds."""
    values = {"dataset": "digits", "clients": 3, "rounds": 2, "samples": None, "snapshots": 2, **values}
    Experiment(method, out=folder, log=lambda _: None, **values).run()
    return folder


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """Returns the folder of a small run of a method; trained once."""
    done = {}

    def run(method, **values):
        name = (method, *sorted(values.items()))
        if name not in done:
            done[name] = train(tmp_path_factory.mktemp("runs") / method, method, **values)
        return done[name]

    return run
