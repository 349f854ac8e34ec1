"""Grad-CAM of clients' models with one head or one kind of features active (FedCP Fig. 3, FediOS Fig. 1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from pfl_fast.analysis.figures import pictures
from pfl_fast.analysis.images import as_array, picture
from pfl_fast.analysis.result import Result
from pfl_fast.analysis.run import AnalysisError, AnalysisOptions, FinishedRun
from pfl_fast.methods.base import Client
from pfl_fast.methods.fedcp import FedCP
from pfl_fast.methods.fedios import FediOS

SHOWN = 5  # samples
Logits = Callable[[Tensor], Tensor]


def last_convolution(extractor: nn.Module) -> nn.Module:
    """Returns the last convolution of an extractor."""
    found = [layer for layer in extractor.modules() if isinstance(layer, nn.Conv2d)]
    if not found:
        raise AnalysisError("the extractor has no convolution, which Grad-CAM needs")
    return found[-1]


def grad_cam(logits: Logits, layer: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Returns Grad-CAM ``[n, h, w]`` in [0, 1] of the logit of the true class, with captum, at the size of ``x``.

    Args:
        logits: function from samples to ``[n, C]`` logits.
        layer: convolution whose activations are weighted.
        x: ``[n, c, h, w]`` samples.
        y: ``[n]`` labels.
    """
    try:
        from captum.attr import LayerAttribution, LayerGradCam
    except ImportError:
        raise AnalysisError("needs captum: pip install 'pfl-fast[saliency]'") from None
    map_ = LayerGradCam(logits, layer).attribute(x, y, relu_attributions=True)
    map_ = LayerAttribution.interpolate(map_, tuple(x.shape[2:]), "bilinear").detach()[:, 0]
    top = map_.amax((1, 2), keepdim=True)
    scaled: Tensor = torch.where(top > 0, map_ / top, map_)
    return scaled


def heads_of_fedcp(method: FedCP, client: Client) -> dict[str, tuple[Logits, nn.Module]]:
    """Returns the logits of FedCP's client with the global, the personal and both heads active, and the layer."""
    parts: Any = client

    def one(which: str) -> Logits:
        def logits(x: Tensor) -> Tensor:
            h = parts.extractor(x)
            scores = parts.cpn.scores(h, method.policy_input(h, parts.context.vector))
            shared, own = parts.cpn.route(h, scores, None)
            outputs = {"global head": parts.global_head(shared), "personal head": parts.head(own)}
            found: Tensor = outputs[which] if which in outputs else sum(outputs.values())
            return found

        return logits

    layer = last_convolution(parts.extractor)
    return {name: (one(name), layer) for name in ("global head", "personal head", "both heads")}


def features_of_fedios(method: FediOS, client: Client) -> dict[str, tuple[Logits, nn.Module]]:
    """Returns the logits of generic, personal and fused features of FediOS's client, and the layer of each."""
    parts: Any = client
    if method.options.personal_extractor != "own":
        raise AnalysisError("the run has no personal extractor")

    def one(place: int) -> Logits:
        def logits(x: Tensor) -> Tensor:
            p_g, p_p, p_f, _ = method.project(parts, *method.features(parts, x))
            found: Tensor = parts.head((p_g, p_p, p_f)[place])
            return found

        return logits

    generic, own = last_convolution(parts.extractor), last_convolution(parts.personal_extractor)
    return {
        "generic": (one(0), generic),
        "personal": (one(1), own),
        "fused, W_g": (one(2), generic),
        "fused, W_p": (one(2), own),
    }


def saliency(run: FinishedRun, options: AnalysisOptions) -> Result:
    """Returns Grad-CAM maps of samples of one client, for each head or kind of features."""
    run.check_client(options.client)
    split, client = options.split or "test", run.client(options.client)
    if run.experiment.dataset.modality != "images":
        raise AnalysisError("needs images")
    x, y = run.samples(options.client, split, SHOWN)
    if isinstance(run.method, FedCP):
        if not run.option("cpn"):
            raise AnalysisError("the run has no policy network (cpn=false)")
        views = heads_of_fedcp(run.method, client)
    else:
        assert isinstance(run.method, FediOS)
        views = features_of_fedios(run.method, client)
    maps = {name: grad_cam(logits, layer, x, y) for name, (logits, layer) in views.items()}
    rows = [
        [name, run.classes[int(label)], *centre(own), float(own.mean())]
        for name, found in maps.items()
        for own, label in zip(found, y, strict=True)
    ]
    images = [picture(run, sample) for sample in x]
    shown = [[as_array(image) for image in images]]
    shown += [[_overlay(image, own) for image, own in zip(images, found, strict=True)] for found in maps.values()]
    return Result(
        "Grad-CAM",
        f"Grad-CAM (captum) of the last convolution with the logit of the true class, {split} samples of client "
        f"{run.client_names[options.client]}; bright: regions that raise the logit; each map scaled by its maximum "
        "(FedCP, Fig. 3; FediOS, Fig. 1).",
        ["active", "class", "centre, row", "centre, column", "mean of the map"],
        rows,
        lambda figure: pictures(figure, shown, [run.classes[int(label)] for label in y], ["sample", *maps]),
        (1.0 * len(images) + 0.8, 1.05 * len(shown) + 0.3),
    )


def centre(values: Tensor) -> tuple[float, float]:
    """Returns the centre of mass ``(row, column)`` of a map, in [0, 1].

    >>> centre(torch.tensor([[0.0, 0.0, 1.0]]))
    (0.0, 1.0)
    """
    total = float(values.sum())
    if not total:
        return float("nan"), float("nan")
    sums = values.sum(1), values.sum(0)
    row, column = (float((s * torch.arange(len(s))).sum() / total / max(1, len(s) - 1)) for s in sums)
    return row, column


def _overlay(image: Tensor, values: Tensor) -> Any:
    import matplotlib as mpl

    colours = torch.tensor(mpl.colormaps["cividis"](values.numpy())[..., :3], dtype=torch.float32).movedim(-1, 0)
    return as_array(0.4 * image.mean(0, keepdim=True).expand(3, -1, -1) + 0.6 * colours)
