import pytest

from tests.engine import small_experiments as small

ON_GPUS = {f"test_{rounds}_equal_the_naive_implementation" for rounds in ("rounds", "two_rounds")}


def pytest_generate_tests(metafunc):
    """Comparisons of whole methods with the naive implementation run on a GPU, too."""
    if metafunc.definition.name in ON_GPUS:
        metafunc.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)], indirect=True)


@pytest.fixture(autouse=True)
def device(request, monkeypatch):
    """Device of the experiments of a test; the naive implementation always runs on the CPU."""
    monkeypatch.setattr(small, "DEVICE", getattr(request, "param", "cpu"))


@pytest.fixture(autouse=True, scope="module")
def small_models(one_core):
    """All tests of this folder use one thread."""
