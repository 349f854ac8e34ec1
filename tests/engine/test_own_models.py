"""Models given by the user: frozen parameters and BatchNorm."""

import pytest
import torch
from torch import nn

from pfl_fast.errors import ConfigError
from tests.engine import small_experiments as small


def with_model(change, **settings):
    own = small.image_inputs(norm=True)
    change(own["model"])
    return small.image_experiment(norm=True, **{**own, **settings})


def test_frozen_parameters_do_not_change():
    def freeze(model):
        model[1].weight.requires_grad_(False)

    experiment = with_model(freeze, method="fedavg", momentum=0.5, weight_decay=0.1)
    before = experiment.round.state.server["extractor.1.weight"].clone()
    bias = experiment.round.state.server["extractor.1.bias"].clone()
    experiment.run()
    state = small.state_of(experiment)
    assert torch.allclose(state["server extractor.1.weight"], before, atol=1e-7), "averaged, but not trained"
    assert not torch.equal(state["server extractor.1.bias"], bias)


def test_cumulative_batch_norm_is_refused_in_a_stack():
    def cumulative(model):
        model[2] = nn.BatchNorm1d(8, momentum=None)

    with pytest.raises(ConfigError, match=r"extractor\.2 has momentum=None"):
        with_model(cumulative, executor="batched").run()
    with_model(cumulative, executor="threads", rounds=1).run()


def test_batch_norm_needs_two_samples():
    with pytest.raises(ConfigError, match="batch_size: BatchNorm cannot train on single samples"):
        small.image_experiment(norm=True, batch_size=1)
