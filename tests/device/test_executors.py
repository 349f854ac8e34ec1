"""Choice of the executor on GPUs."""

import pytest

from pfl_fast.errors import ConfigError
from tests.device import fake_cuda
from tests.engine import small_experiments as small
from tests.engine.test_probe import CASES

pytestmark = pytest.mark.usefixtures("one_core")


@pytest.mark.parametrize("case", CASES)
def test_auto_trains_clients_one_by_one_if_they_cannot_be_stacked(case, gpus):
    method, model, _ = CASES[case]
    with fake_cuda.recorded(), small.trained(method, model=model(), executor="auto", device=gpus, rounds=1) as running:
        assert running.round.executor.name == "threads"


@pytest.mark.parametrize("gpus", [2], indirect=True)
def test_number_of_threads_is_refused_on_gpus(gpus):
    with fake_cuda.recorded():
        with pytest.raises(ConfigError, match=r"workers: executor threads trains one client .* so 2, got 4; .*batched"):
            small.experiment("fedavg", executor="threads", device=gpus, workers=4).run()
        with small.trained("fedavg", executor="threads", device=gpus, workers=2, rounds=1) as running:
            assert len(running.round.executor.workers) == 2
