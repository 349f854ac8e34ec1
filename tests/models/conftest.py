import pytest
import torch

from pfl_fast.models import MODELS

VISION = {"resnet18", "mobilenet-v2", "efficientnet-b0", "densenet121"}


@pytest.fixture(autouse=True)
def one_thread():
    """Uses one thread: for hundreds of tiny layers synchronising threads takes longer than computing."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _torchvision_works():
    try:
        import torchvision.models  # noqa: F401
    except (ImportError, RuntimeError, OSError, AttributeError):
        return False
    return True


needs_torchvision = pytest.mark.skipif(not _torchvision_works(), reason="torchvision cannot be imported")


def named(name, *arguments):
    """Returns test parameters that start with a model's name, skipped if the model needs a missing torchvision."""
    assert name in MODELS
    return pytest.param(name, *arguments, marks=[needs_torchvision] if name in VISION else [])
