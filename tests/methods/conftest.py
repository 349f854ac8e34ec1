import pytest


@pytest.fixture(autouse=True, scope="module")
def small_models(one_core):
    """All tests of this folder use one thread."""
