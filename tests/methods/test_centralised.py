"""Centralised: plain SGD on the union of all training samples."""

from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from pfl_fast.errors import ConfigError
from tests.engine import small_experiments as small


@pytest.mark.parametrize("executor", ["sequential", "batched"])
@pytest.mark.parametrize("values", [{}, {"momentum": 0.9, "local_epochs": 2, "model": small.with_batch_norm()}])
def test_it_equals_sgd_on_the_pooled_samples(executor, values):
    values = {**values, "eval_at": "both"}
    untrained = small.experiment("centralised", **values)
    net, s = deepcopy(untrained.part_table.client), untrained.settings
    pooled = torch.cat([untrained.data.indices("train", client) for client in range(untrained.data.clients)])
    net.train()
    for round in range(1, s.rounds + 1):
        optimizer = torch.optim.SGD(net.parameters(), s.lr, s.momentum)
        for epoch in range(s.local_epochs):
            order = untrained.data.pooled().order(0, round, epoch).sample
            assert sorted(order.tolist()) == sorted(pooled.tolist())
            for index in order.split(s.batch_size):
                x, y = untrained.data.take(index)
                optimizer.zero_grad()
                F.cross_entropy(net.head(net.extractor(x)), y).backward()
                optimizer.step()
    with small.trained("centralised", executor=executor, **values) as running:
        state = small.state_of(running)
        for name, expected in net.state_dict().items():
            torch.testing.assert_close(state[f"server {name}"], expected, rtol=1e-10, atol=1e-10)
            for client in range(running.data.clients):
                torch.testing.assert_close(state[f"client {client} {name}"], expected, rtol=1e-10, atol=1e-10)
        for record in running.records:
            assert record["samples"] == len(pooled) * s.local_epochs
            assert record["clients_trained"] == 1
            assert record["test_accuracy_after_local"] == record["test_accuracy_after_agg"]


@pytest.mark.parametrize("eval_at", ["after_local", "after_agg"])
def test_every_client_is_tested_at_every_evaluation_point(eval_at):
    with small.trained("centralised", eval_at=eval_at) as running, small.trained("centralised") as both:
        assert running.records[-1][f"test_accuracy_{eval_at}"] == both.records[-1]["test_accuracy_after_agg"]


def test_the_fine_tune_is_on_the_own_samples_of_each_client():
    with small.trained("centralised", finetune_epochs=1) as running:
        assert running.records[-1]["samples"] == sum(small.RAGGED)


def test_personal_batch_norm_is_refused():
    with pytest.raises(ConfigError, match="batch_norm: Centralised has one model"):
        small.experiment("centralised", model=small.with_batch_norm(), batch_norm="personal")
