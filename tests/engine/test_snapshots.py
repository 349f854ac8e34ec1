"""Snapshots: the models of a round, put together from files, equal those of the run."""

import pytest
import torch

from pfl_fast import Experiment
from pfl_fast.engine.results.listeners import Listener
from pfl_fast.engine.results.snapshots import read_snapshots
from pfl_fast.errors import PflFastError

SMALL = {"dataset": "digits", "clients": 3, "model": "mlp", "log": lambda _: None}


class Watch(Listener):
    def __init__(self):
        self.local, self.before = {}, {}

    def client_trained(self, round, client, tensors, upload):
        self.local[round, client] = {name: tensor.clone() for name, tensor in tensors.items()}


@pytest.mark.parametrize("method", ["fedcp", "fedafk", "fedala", "fedfomo"])
def test_snapshots_equal_the_models_of_the_run(tmp_path, method):
    experiment, watch = Experiment(method, rounds=3, snapshots=2, out=tmp_path / "run", **SMALL), Watch()
    experiment.listeners.append(watch)
    before = None
    for record in experiment.rounds():
        if record["round"] == 2:
            view = experiment.state.clients.view(1, experiment.state.server, round=3)
            before = {name: tensor.clone() for name, tensor in view.items()}
    found = read_snapshots(tmp_path / "run", experiment.part_table, experiment.method, 3)
    assert [(s.round, s.clients) for s in found] == [(1, [0, 1, 2]), (3, [0, 1, 2])]
    kept, after = found[1], experiment.round.client_tensors(1)
    for name in (spec.key for spec in experiment.part_table.model_specs if spec.parameter):
        if not experiment.part_table.mixed:
            assert torch.equal(kept.after_aggregation(1)[name], after[name])
        assert torch.equal(kept.after_local(1)[name], watch.local[3, 1][name])
        assert torch.equal(kept.before(1)[name], before[name])


def test_a_resumed_run_completes_its_snapshots(tmp_path):
    for out, stops in (("through", False), ("stopped", True)):
        experiment = Experiment("fedper", rounds=3, snapshots=3, out=tmp_path / out, **SMALL)
        rounds = experiment.rounds()
        next(rounds)
        if stops:
            experiment._tell("interrupted")
            experiment.close()
            experiment = Experiment.resume(tmp_path / out, log=lambda _: None)
            rounds = experiment.rounds()
        assert len(list(rounds)) == 2
    through, stopped = (
        {f.relative_to(tmp_path / out / "snapshots"): f.read_bytes() for f in (tmp_path / out).rglob("*.safetensors")
         if "snapshots" in f.parts}
        for out in ("through", "stopped")
    )  # fmt: skip
    assert through == stopped
    assert len(through) == 3 * (2 + 2 * 3)


def test_a_snapshot_is_completed_if_the_process_ended_after_the_checkpoint(tmp_path):
    experiment = Experiment("fedper", rounds=2, snapshots=2, out=tmp_path, **SMALL)
    next(experiment.rounds())
    experiment._tell("interrupted")
    experiment.close()
    file = tmp_path / "snapshots" / "round-000001" / "server.safetensors"
    before = file.read_bytes()
    file.unlink()
    next(Experiment.resume(tmp_path, log=lambda _: None).rounds())
    assert file.read_bytes() == before


@pytest.mark.parametrize("damage", ["bit", "cut", "deleted"])
def test_a_damaged_snapshot_is_named(tmp_path, damage):
    experiment = Experiment("fedper", rounds=1, snapshots=1, out=tmp_path, **SMALL)
    experiment.run()
    (snapshot,) = read_snapshots(tmp_path, experiment.part_table, experiment.method, 1)
    snapshot.before(0)
    file = tmp_path / "snapshots" / "round-000001" / "client-00000-before.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content if damage == "bit" else content[:-5])
    if damage == "deleted":
        file.unlink()
    with pytest.raises(PflFastError, match=r"client-00000-before.*delete .*round-000001 to leave"):
        snapshot.before(0)
