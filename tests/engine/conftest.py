import pytest
import torch


@pytest.fixture(scope="module")
def one_core():
    """Uses one thread: models of a few hundred parameters are slower on several."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
