"""Rounds are added to a run, once and for all, unless its training depends on their number."""

import pytest
import torch

from pfl_fast.engine.stopping import Interrupted
from pfl_fast.errors import PflFastError
from pfl_fast.methods import METHODS
from tests.engine import faulty_disk as faulty
from tests.engine import small_experiments as small
from tests.engine.test_resume import StopAfter

pytestmark = pytest.mark.usefixtures("one_core")


def test_a_run_interrupted_after_rounds_were_added_continues_to_the_new_number(tmp_path):
    faulty.train(faulty.begin(tmp_path / "run"))
    longer = faulty.resume(tmp_path / "run", rounds=5)
    longer.listeners.append(StopAfter(longer, 4))
    with pytest.raises(Interrupted):
        longer.run()
    longer.close()
    faulty.train(faulty.resume(tmp_path / "run"))
    faulty.train(faulty.begin(tmp_path / "whole", rounds=5))
    assert faulty.contents(tmp_path / "run") == faulty.contents(tmp_path / "whole")


def test_a_run_killed_while_rounds_are_added_has_one_number_of_rounds(tmp_path):
    """The checkpoint has the new number, config.toml does not have it yet."""
    faulty.train(faulty.begin(tmp_path / "run"))
    before = (tmp_path / "run" / "config.toml").read_bytes()
    rounds = (longer := faulty.resume(tmp_path / "run", rounds=5)).rounds()
    next(rounds)
    longer.close()
    (tmp_path / "run" / "config.toml").write_bytes(before)
    again = faulty.resume(tmp_path / "run")
    assert (again.settings.rounds, again.state.rounds_done) == (5, 4)
    faulty.train(again)
    assert b"rounds = 5" in (tmp_path / "run" / "config.toml").read_bytes()


DEPENDING = [
    ("fedphp", {}, "FedPHP"),
    ("partialfed-adaptive", {"annealing": "linear"}, "PartialFed-Adaptive"),
    ("fedavg", {"lr_schedule": "cosine"}, "lr_schedule=cosine"),
]


@pytest.mark.parametrize(("method", "settings", "name"), DEPENDING)
def test_no_rounds_are_added_if_training_depends_on_their_number(tmp_path, method, settings, name):
    experiment = faulty.begin(tmp_path / "run", method=method, rounds=2, finetune_epochs=0, **settings)
    rounds = experiment.rounds()
    next(rounds)
    experiment.close()
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    with pytest.raises(PflFastError, match=f"was 2, asked for 4; the local training of {name} depends on the number"):
        faulty.resume(tmp_path / "run", rounds=4)
    faulty.train(faulty.resume(tmp_path / "run", rounds=2))
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes().startswith(before)


CASES = [(name, {}) for name in METHODS] + [(method, settings) for method, settings, _ in DEPENDING if settings]
CASES += [("fedphp", {"mu": 0.0}), ("fedavg", {"lr_decay": 0.9})]


@pytest.mark.parametrize(("method", "settings"), CASES)
def test_methods_and_settings_say_whether_training_depends_on_the_number_of_rounds(method, settings):
    """Two rounds of three and of six differ in their results exactly then."""
    states, said = [], set()
    for rounds in (3, 6):
        running = small.experiment(method, (7, 5), rounds=rounds, finetune_epochs=0, momentum=0.5, **settings)
        numbers = running.rounds()
        next(numbers), next(numbers)
        states.append(small.state_of(running))
        said.add(running.method.depends_on_rounds or running.settings.depends_on_rounds)
        running.close()
    first, second = states
    assert said == {any(not torch.equal(first[name], second[name]) for name in first)}
