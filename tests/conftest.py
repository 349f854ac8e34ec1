import pytest
import torch


def pytest_collection_modifyitems(items):
    """Tests marked ``cuda`` run where there is a GPU."""
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("cuda"):
            item.add_marker(pytest.mark.skip(reason="needs a GPU"))
