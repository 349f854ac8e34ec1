import pytest
import torch


@pytest.fixture(scope="module")
def one_core():
    """Models of a few hundred parameters only lose by being split over cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
