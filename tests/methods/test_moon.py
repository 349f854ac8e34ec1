import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from pfl_fast.methods.base import Batch
from tests.engine import small_experiments as small
from tests.methods.compare import LONGER, assert_equals_naive, assert_same, distance, final, model_of
from tests.methods.naive_regularised import Moon

CASES = {
    **LONGER,
    "strong": {"mu": 5.0, "rounds": 3, "local_epochs": 2},
    "sharp": {"tau": 0.1, "rounds": 3, "momentum": 0.5},
    "projected": {"projection": True, "rounds": 3, "join_ratio": 0.6},
}


@pytest.mark.parametrize("case", CASES)
def test_rounds_equal_the_naive_implementation(case):
    assert_equals_naive("moon", CASES[case], Moon)


def test_with_mu_0_it_is_fedavg_to_the_bit():
    values = {"rounds": 3, "join_ratio": 0.6, "momentum": 0.9}
    assert_same(model_of(final("moon", mu=0, **values)), model_of(final("fedavg", **values)))


def test_in_the_first_round_the_contrastive_term_has_no_gradient():
    assert_same(model_of(final("moon", rounds=1)), model_of(final("fedavg", rounds=1)), 1e-9)
    assert distance(model_of(final("moon", rounds=2)), model_of(final("fedavg", rounds=2))) > 1e-4


def test_the_contrastive_term_pulls_features_to_the_global_and_away_from_the_previous_ones():
    running = small.experiment("moon")
    client = running.part_table.new_client(torch.device("cpu"))
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for part in (client.global_extractor, client.previous_extractor):
            for parameter in part.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
    x, y = running.data.take(running.data.indices("train", 0))
    (phase,) = running.method.phases(1)
    with torch.no_grad():
        batch = Batch(x, y, torch.tensor(0), {name: once.compute(client, x) for name, once in phase.cached.items()})
    total, _ = phase.loss(client, batch)
    contrast = total - F.cross_entropy(client.head(client.extractor(x)), y)

    def preference():
        z = client.extractor(x)
        toward, away = (
            F.cosine_similarity(z, other(x)) for other in (client.global_extractor, client.previous_extractor)
        )
        return (toward - away).mean().item()

    weights = list(client.extractor.parameters())
    before = preference()
    gradients = torch.autograd.grad(contrast, weights, retain_graph=True)
    others = [*client.global_extractor.parameters(), *client.previous_extractor.parameters()]
    assert all(g is None for g in torch.autograd.grad(total, others, allow_unused=True))
    with torch.no_grad():
        for weight, gradient in zip(weights, gradients, strict=True):
            weight -= 0.1 * gradient
    assert preference() > before + 1e-3
    running.close()


def test_the_projection_is_part_of_the_extractor():
    shapes = [tuple(t.shape) for name, t in final("moon", projection=True).items() if name.startswith("server")]
    assert shapes == [(5, 6), (5,), (5, 5), (5,), (5, 5), (5,), (3, 5), (3,)]
