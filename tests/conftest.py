import os
from collections import defaultdict
from pathlib import Path

import pytest
import torch

# Folder of real data for tests, next to the checkout or named by the variable; tests skip without it.
REAL_DATA = Path(os.environ.get("PFL_FAST_TEST_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))


# Tests that compile code or start several processes; make test runs them, make test-fast does not.
FULL_ONLY = ("tests/chaos/", "tests/emulation/", "tests/native/", "tests/bench/", "tests/test_examples.py")
FEW = 2  # tests of a file, evenly spaced, that make test-fast runs


def pytest_report_header():
    """Says which CPU kernels the tests run; ``PFL_FAST_CPU_CAPABILITY`` chooses older ones."""
    from pfl_fast import ops

    found = torch.ops.pfl_fast.cpu_capability() if ops.NATIVE.available else f"none, {ops.NATIVE.problem}"
    return f"CPU kernels: {found}"


def pytest_terminal_summary(terminalreporter):
    """Says which CPU kernels ran the operator contract in tests/ops/test_instruction_sets.py."""
    reports = [r for outcome in ("passed", "failed") for r in terminalreporter.stats.get(outcome, [])]
    ran = sorted(r.nodeid.split("[")[1].rstrip("]") for r in reports if "::test_contract_holds[" in r.nodeid)
    if ran:
        terminalreporter.write_line(f"CPU kernels that ran the operator contract: {', '.join(ran)}")


def pytest_collection_modifyitems(items):
    """Skips tests marked ``cuda`` without a GPU; marks some tests of every file ``fast``, for ``make test-fast``."""
    groups = defaultdict(list)
    for item in items:
        if item.get_closest_marker("cuda") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a GPU"))
        elif not item.get_closest_marker("slow") and not item.nodeid.startswith(FULL_ONLY):
            groups[group_of(item)].append(item)
    for group in groups.values():
        count = min(len(group), max(FEW, len(group) // 60))
        for number in range(count):
            group[(2 * number + 1) * len(group) // (2 * count)].add_marker(pytest.mark.fast)


def group_of(item):
    """The file of a test; in the tests of all executors, also the family of the method."""
    file = item.nodeid.partition("::")[0]
    if file != "tests/engine/test_executors.py":
        return file
    from pfl_fast.methods import METHODS

    return file, METHODS[item.callspec.params["method"]].family


@pytest.fixture(autouse=True)
def own_data_folder(tmp_path, monkeypatch):
    """No test sees, or touches, the user's data sets, raw or decoded."""
    monkeypatch.setenv("PFL_FAST_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("PFL_FAST_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def one_core():
    """Uses one thread: small layers are slower on several."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def real_data():
    """The folder of real data sets; tests that ask for it are skipped where it is absent."""
    if not REAL_DATA.is_dir():
        pytest.skip(f"no real data in {REAL_DATA}")
    return REAL_DATA


# Arguments of the runs below.
TINY = {"dataset": "mnist", "samples": 240, "image_size": 8, "clients": 3, "model": "mlp", "rounds": 3}


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """Folders of two runs on generated data that stands in for MNIST."""
    folder = tmp_path_factory.mktemp("runs")
    from pfl_fast.experiment import Experiment

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PFL_FAST_DATA", str(folder / "data"))
        patch.setenv("PFL_FAST_CACHE", str(folder / "cache"))
        for method in ("fedavg", "fedcp"):
            out = folder / method
            Experiment(method, **TINY, metrics=("per_class_accuracy",), out=out, log=lambda _: None).run()
    return [folder / "fedavg", folder / "fedcp"]
