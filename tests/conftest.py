import os
from pathlib import Path

import pytest
import torch

# Real data to test with, if it is there: a folder beside the checkout, or wherever the variable says.
REAL_DATA = Path(os.environ.get("PFL_FAST_TEST_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))


def pytest_collection_modifyitems(items):
    """Tests marked ``cuda`` run where there is a GPU."""
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("cuda"):
            item.add_marker(pytest.mark.skip(reason="needs a GPU"))


@pytest.fixture(autouse=True)
def own_data_folder(tmp_path, monkeypatch):
    """No test sees, or touches, the user's data sets."""
    monkeypatch.setenv("PFL_FAST_DATA", str(tmp_path / "data"))


@pytest.fixture
def real_data():
    """The folder of real data sets; tests that ask for it are skipped where it is absent."""
    if not REAL_DATA.is_dir():
        pytest.skip(f"no real data in {REAL_DATA}")
    return REAL_DATA
