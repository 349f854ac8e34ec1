import pytest

from pfl_fast.models import MODELS

VISION = {"resnet18", "mobilenet-v2", "efficientnet-b0", "densenet121"}


@pytest.fixture(autouse=True, scope="module")
def tiny_layers(one_core):
    """All tests of this folder use one thread."""


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
