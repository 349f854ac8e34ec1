"""FedCP's analyses: shares of the policy network, local learning, Grad-CAM, and leakage from gradients."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.func import functional_call

from pfl_fast.analysis.analyse import compute
from pfl_fast.analysis.fedcp import objective, personal_shares
from pfl_fast.analysis.leakage import differentiable, dlg, gradient, psnr, upload_after_one_step
from pfl_fast.analysis.run import AnalysisOptions, FinishedRun
from pfl_fast.analysis.saliency import grad_cam
from pfl_fast.methods.losses import cross_entropy
from pfl_fast.models import build

IMAGES = {"image_size": 16, "model": "cnn", "rounds": 2, "clients": 2, "per_client": 40, "partition": "iid"}
OPTIONS = AnalysisOptions(samples=30)


def test_shares_are_the_softmax_of_the_policy(runs):
    with FinishedRun(runs("fedcp", **IMAGES)) as run:
        client, (x, _) = run.client(0), run.samples(0, "test", 5)
        h = client.extractor(x)
        a = torch.relu(client.cpn.norm(client.cpn.linear(client.context.vector * h)))
        expected = a.view(5, 2, -1).softmax(1)[:, 1]
        torch.testing.assert_close(personal_shares(run.method, client, x), expected, atol=1e-5, rtol=1e-4)
        result = compute("s-distribution", run, AnalysisOptions(samples=5))
        assert result.rows[0][3] == pytest.approx(expected.detach().mean().item(), abs=1e-5)
        rounds, pir = run.recorded("pir")
        assert rounds.tolist() == [1, 2]
        np.testing.assert_allclose(np.array(compute("pir", run, OPTIONS).rows)[:, 1:], pir)


def test_local_learning_lowers_the_loss_on_training_data(runs):
    with FinishedRun(runs("fedcp", **IMAGES)) as run:
        rows = np.array(compute("local-learning", run, OPTIONS).rows)
        assert rows[:, 0].tolist() == [1, 2]
        assert (rows[:, 2] < rows[:, 1]).all()
    with FinishedRun(runs("fedavg", **IMAGES)) as run:
        (x, y), client = run.samples(0, "train", 15), run.client(0)
        with torch.no_grad():
            expected = cross_entropy(client.head(client.extractor(x)), y)
        assert objective(run, client, x, y, 2) == pytest.approx(float(expected), rel=1e-5)


def test_grad_cam_is_the_weighted_sum_of_activations():
    pytest.importorskip("captum")
    torch.manual_seed(0)
    layer, head = nn.Conv2d(1, 3, 3, padding=1), nn.Linear(3, 2)

    def logits(x):
        return head(layer(x).mean((2, 3)))

    x, y = torch.randn(2, 1, 4, 4), torch.tensor([0, 1])
    found = grad_cam(logits, layer, x, y)
    weights = head.weight[y] / 16  # the gradient of the logit by every activation of a channel
    expected = torch.relu((weights[:, :, None, None] * layer(x)).sum(1))
    torch.testing.assert_close(found, (expected / expected.amax((1, 2), keepdim=True)).detach())


@pytest.mark.parametrize("method", ["fedcp", "fedios"])
def test_saliency_of_a_run(runs, method):
    pytest.importorskip("captum")
    with FinishedRun(runs(method, **IMAGES)) as run:
        rows = compute("saliency", run, OPTIONS).rows
        assert len({row[0] for row in rows}) == {"fedcp": 3, "fedios": 4}[method]
        assert all(0 <= row[4] <= 1 for row in rows)


def digit_model():
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 8, 3, padding=1), nn.Sigmoid(), nn.Conv2d(8, 8, 3, stride=2, padding=1), nn.Sigmoid()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128, 10)).double()


@pytest.mark.parametrize("number", [0, 3])
def test_dlg_recovers_a_digit_from_the_gradient_of_one_sample(number):
    """Guessing grey gives about 8 dB; the digit is clearly visible from 20 dB on."""
    model = digit_model()
    with torch.no_grad():  # the paper's initial weights, whose gradients tell more
        for parameter in model.parameters():
            parameter.uniform_(-0.5, 0.5)
    digit = torch.tensor(load_digits().images[number] / 16)[None, None]
    target = torch.full((1, 10), -30.0, dtype=torch.float64)
    target[0, load_digits().target[number]] = 30
    observed = [g.detach() for g in gradient(model, list(model.parameters()), digit, target)]
    found = dlg(model, list(model.parameters()), observed, digit.shape, 10, steps=60, seed=1)
    assert psnr(digit, torch.full_like(digit, 0.5)) < 10
    assert psnr(digit, found) > 25


def test_the_model_under_attack_equals_the_trained_one():
    backbone = build("cnn", input_shape=(1, 16, 16), classes=3)
    x = torch.randn(2, 1, 16, 16)
    torch.testing.assert_close(differentiable(backbone)(x), backbone(x), atol=1e-5, rtol=1e-4)


def test_one_step_upload_is_the_gradient_of_fedavg_and_the_mean_of_fedcp(runs):
    with FinishedRun(runs("fedavg", **IMAGES)) as run:
        (x, y), client = run.samples(0, "train", 1), run.client(0)
        received, sent = upload_after_one_step(run, client, x, y, 0.1)
        names = dict(client.named_parameters())
        loss = cross_entropy(functional_call(client.head, {}, (client.extractor(x),)), y)
        expected = torch.autograd.grad(loss, list(names.values()))
        for name, g in zip(names, expected, strict=True):
            torch.testing.assert_close((received[name] - sent[name]) / 0.1, g, atol=1e-4, rtol=1e-3)
    with FinishedRun(runs("fedcp", **IMAGES)) as run:
        (x, y), client = run.samples(0, "train", 1), run.client(0)
        received, sent = upload_after_one_step(run, client, x, y, 0.0)
        mean = (client.global_head.weight + client.head.weight) / 2
        torch.testing.assert_close(sent["head.weight"], mean.detach())
        torch.testing.assert_close(sent["cpn.norm.weight"], received["cpn.norm.weight"])


def test_attack_of_a_run(runs, monkeypatch):
    monkeypatch.setattr("pfl_fast.analysis.leakage.STEPS", 1)
    for method in ("fedavg", "fedper", "fedcp"):
        with FinishedRun(runs(method, **IMAGES)) as run:
            result = compute("dlg", run, OPTIONS)
            assert len(result.rows) == 3
            assert all(np.isfinite(row[2]) for row in result.rows)
            assert ("random head" in result.caption) == (method == "fedper")
