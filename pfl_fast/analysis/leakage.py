"""Deep leakage from gradients (DLG): reconstructs a training sample from an upload (FedCP Table 9).

Zhu et al., "Deep Leakage from Gradients", NeurIPS 2019: dummy sample and dummy label whose gradient equals the observed
one are found by L-BFGS.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from pfl_fast.analysis.figures import pictures
from pfl_fast.analysis.images import as_array, picture, statistics
from pfl_fast.analysis.result import Result
from pfl_fast.analysis.run import AnalysisError, AnalysisOptions, FinishedRun
from pfl_fast.methods.base import Batch, Client, Tensors
from pfl_fast.nn import ConvReluPool

STEPS = 100
VICTIMS = 4  # samples of a run, each of another client


def psnr(image: Tensor, other: Tensor, compat: bool = False) -> float:
    """Returns the peak signal-to-noise ratio ``20 log10(1 / sqrt(mse))`` in dB of images in [0, 1].

    Args:
        image: image.
        other: reconstruction.
        compat: as PFLlib, which divides the mean squared error by 3 and does not bring ``image`` back to [0, 1].

    >>> round(psnr(torch.zeros(4), torch.full((4,), 0.1)), 6)
    20.0
    """
    error = float(F.mse_loss(image.double(), other.double())) / (3 if compat else 1)
    return float(-10 * np.log10(error)) if error else float("inf")


def gradient(
    model: Callable[[Tensor], Tensor], parameters: Sequence[Tensor], x: Tensor, target: Tensor, loss: str = "ce"
) -> Sequence[Tensor]:
    """Returns the gradient of a loss at one batch, itself differentiable.

    Args:
        model: function from samples to logits.
        parameters: tensors to differentiate by.
        x: ``[b, ...]`` samples.
        target: ``[b, C]`` logits of soft labels, or with ``loss="mse"`` outputs.
        loss: ``"ce"``: cross entropy with soft labels; ``"mse"``: as PFLlib.
    """
    logits = model(x)
    value = F.mse_loss(logits, target) if loss == "mse" else F.cross_entropy(logits, target.softmax(-1))
    return torch.autograd.grad(value, parameters, create_graph=True)


def dlg(
    model: Callable[[Tensor], Tensor],
    parameters: Sequence[Tensor],
    observed: Sequence[Tensor],
    shape: Sequence[int],
    classes: int,
    normalise: Callable[[Tensor], Tensor] = lambda x: x,
    steps: int = 100,
    seed: int = 0,
    loss: str = "ce",
) -> Tensor:
    """Returns the reconstruction of a batch, ``shape`` values in [0, 1].

    Args:
        model: differentiable function from samples to logits.
        parameters: the tensors whose gradient was observed.
        observed: their gradient.
        shape: shape of the batch ``[b, ...]``.
        classes: number of classes.
        normalise: from values in [0, 1] to the input of the model.
        steps: steps of L-BFGS, each of at most 20 evaluations.
        seed: seed of the first dummy sample and label.
        loss: loss of the attacked client, see :func:`gradient`.
    """
    random = torch.Generator().manual_seed(seed)
    dtype = observed[0].dtype
    dummy = torch.randn(*shape, generator=random, dtype=dtype).requires_grad_()
    label = torch.randn(shape[0], classes, generator=random, dtype=dtype).requires_grad_()
    optimizer = torch.optim.LBFGS([dummy, label], line_search_fn="strong_wolfe")
    scale = sum(float(g.square().sum()) for g in observed) or 1.0

    def distance() -> Tensor:
        optimizer.zero_grad()
        found = gradient(model, parameters, normalise(dummy.sigmoid()), label, loss)
        total = sum(((a - b) ** 2).sum() for a, b in zip(found, observed, strict=True)) / scale
        dummy.grad, label.grad = torch.autograd.grad(total, [dummy, label])  # type: ignore[arg-type]
        return total.detach()  # type: ignore[union-attr]

    best, lowest = dummy.detach().sigmoid(), float("inf")
    for _ in range(steps):
        value = float(optimizer.step(distance))
        if not np.isfinite(value) or value < 1e-20:
            break
        if value < lowest:
            best, lowest = dummy.detach().sigmoid(), value
    return dummy.detach().sigmoid() if np.isfinite(float(distance())) else best


def differentiable(module: nn.Module) -> nn.Module:
    """Returns a copy whose fused layers are torch's, which have second derivatives; parameters in the same order."""
    module = deepcopy(module)
    for name, layer in list(module.named_modules()):
        if isinstance(layer, ConvReluPool):
            plain = nn.Conv2d(layer.in_channels, layer.out_channels, layer.kernel_size, padding=layer.padding)  # type: ignore[arg-type]
            plain.weight, plain.bias = layer.weight, layer.bias
            module.set_submodule(name, nn.Sequential(plain, nn.ReLU(), nn.MaxPool2d(2)))
    return module


def upload_after_one_step(run: FinishedRun, client: Client, x: Tensor, y: Tensor, lr: float) -> tuple[Tensors, Tensors]:
    """Returns received and uploaded parameters of a client that trains one step of plain SGD on one batch."""
    phase, table = run.method.phases(run.rounds)[0], run.experiment.part_table
    trained = [n for n, p in client.named_parameters() if n.split(".")[0] in phase.train and p.requires_grad]
    cached = {name: cache.compute(client, x).detach() for name, cache in phase.cached.items()}
    value, _ = phase.loss(client, Batch(x, y, torch.tensor(0), cached))
    parameters = [client.get_parameter(name) for name in trained]
    gradients = torch.autograd.grad(value, parameters, allow_unused=True)
    before = {name: value.detach() for name, value in client.state_dict().items()}
    stepped = {n: before[n] - lr * g for n, g in zip(trained, gradients, strict=True) if g is not None}
    after = {**before, **stepped}
    sent = {str(s.upload_to): after[s.key] for s in table.uploaded if s.parameter or s.key in after}
    sent.update(run.method.upload(after))
    received = {str(s.receive_from): before[s.key] for s in table.received if s.key in before}
    return received, sent


def attack(run: FinishedRun, options: AnalysisOptions) -> Result:
    """Returns the PSNR of samples that DLG reconstructs from uploads of one step on one sample (FedCP Table 9)."""
    if run.experiment.dataset.modality != "images":
        raise AnalysisError("needs images")
    rows, shown = [], []
    for number in range(min(VICTIMS, run.clients)):
        x, y = run.samples(number, options.split or "train", 1)
        client = run.client(number)
        received, sent = upload_after_one_step(run, client, x, y, 1.0)
        found = _reconstruct(run, received, sent, x.shape, options.seed)
        original, copy = picture(run, x[0]), found[0]
        rows.append([run.client_names[number], run.classes[int(y)], psnr(original, copy)])
        shown.append([as_array(original), as_array(copy)])
    visible = "extractor and head" if any(n.startswith("head.") for n in sent) else "extractor, with a random head"
    mean = float(np.mean([row[2] for row in rows]))
    return Result(
        "Deep leakage from gradients",
        f"Reconstruction of one sample from received minus uploaded {visible} after one step of plain SGD on it, from "
        f"the models at the end of the run; {STEPS} steps of L-BFGS (FedCP, Table 9; the paper attacks whole rounds). "
        "A higher PSNR is a better reconstruction.",
        [run.client_label, "class", "PSNR (dB)"],
        [*rows, ["mean", "", mean]],
        lambda figure: pictures(
            figure,
            [list(images) for images in zip(*shown, strict=True)],
            [f"client {row[0]}\n{row[2]:.1f} dB" for row in rows],
            ["sample", "DLG"],
        ),
        (1.3 * len(shown) + 0.6, 3.2),
    )


def _reconstruct(run: FinishedRun, received: Tensors, sent: Tensors, shape: Sequence[int], seed: int) -> Tensor:
    """Returns the reconstruction from the difference of received and uploaded extractor and head."""
    parts = run.experiment.part_table.client
    if not any(name.startswith("extractor.") for name in sent):
        raise AnalysisError("the method's clients upload no extractor")
    head: Any = getattr(parts, "head", None) or parts.get_submodule("global_head")
    model = nn.Sequential(deepcopy(parts.get_submodule("extractor")), deepcopy(head))
    own = {name.replace("extractor.", "0.", 1).replace("head.", "1.", 1): name for name in sent}
    state = model.state_dict()
    for mine, name in own.items():
        if mine in state and name in received:
            state[mine] = received[name]
    model.load_state_dict(state)
    visible = [n for n, _ in model.named_parameters() if own.get(n, "") in received]
    observed = [received[own[n]] - sent[own[n]] for n in visible]
    places = [number for number, (n, _) in enumerate(model.named_parameters()) if n in visible]
    plain = differentiable(model).eval()
    parameters = [list(plain.parameters())[place] for place in places]
    mean, std = statistics(run)
    classes = len(run.classes)
    return dlg(plain, parameters, observed, shape, classes, lambda z: (z - mean) / std, STEPS, seed)
