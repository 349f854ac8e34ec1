import threading

import pytest

from pfl_fast.data.load import load
from pfl_fast.errors import DataError
from tests.data.bad_server import Server


@pytest.fixture
def raw(tmp_path):
    """Folder of the original files of a data set."""
    folder = tmp_path / "raw"
    folder.mkdir()
    return folder


@pytest.fixture
def said():
    return []


@pytest.fixture
def load_real(raw, said):
    """Loads real data from ``raw``, without downloads."""

    def loader(name, **more):
        return load(name, **{"folder": raw, "real_only": True, "download": False, "log": said.append, **more})

    return loader


@pytest.fixture
def refuses(tmp_path, load_real):
    """Checks that a data set cannot be loaded from ``raw``, why, and that no cache is left."""

    def caches():
        return [path for path in tmp_path.glob("cache/prepared/*") if path.is_dir()]

    def check(name, message, **more):
        before = caches()
        with pytest.raises(DataError, match=message):
            load_real(name, **more)
        assert caches() == before

    return check


@pytest.fixture
def server():
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()
