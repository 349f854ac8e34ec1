import pytest

from tests.emulation.harness import CXX, Emulator


@pytest.fixture(scope="session")
def emulator(tmp_path_factory):
    """Compiles kernels for the emulation, once per variant and source."""
    if CXX is None:
        pytest.skip("needs a C++ compiler")
    folder = tmp_path_factory.mktemp("emulation")
    made = {}

    def make(variant, source, *defines):
        key = variant, source, defines
        if key not in made:
            made[key] = Emulator(variant, [source], folder, defines)
        return made[key]

    return make
