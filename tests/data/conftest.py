import threading

import pytest

from pfl_fast.data.load import load
from tests.data.bad_server import Server


@pytest.fixture
def raw(tmp_path):
    """A folder for a data set's own files."""
    folder = tmp_path / "raw"
    folder.mkdir()
    return folder


@pytest.fixture
def said():
    return []


@pytest.fixture
def load_real(raw, said):
    """Loads from ``raw``, real data only, nothing from the net."""

    def loader(name, **more):
        return load(name, **{"folder": raw, "real_only": True, "download": False, "report": said.append, **more})

    return loader


@pytest.fixture
def server():
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()
