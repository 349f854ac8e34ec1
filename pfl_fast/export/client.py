"""Exports the model of one client of an experiment, and compares the file with the trainer's predictions."""

from __future__ import annotations

import json
import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pfl_fast import __version__, atomic
from pfl_fast.experiment import Experiment
from pfl_fast.export.exported import ExportedModel
from pfl_fast.export.formats import FORMATS, Logits, find_format, quietly
from pfl_fast.export.portable import ExportError, Portable, describe_input, in_plain_torch, random_samples

SAMPLES = (1, 2, 9)  # batch sizes that are compared
TOLERANCE = 1e-3  # of logits, relative to the largest


def portable_client(experiment: Experiment, client: int | str) -> ExportedModel:
    """Returns a client's model in the form that is exported: it takes samples that are not normalised."""
    number = experiment.client_number(client)
    dataset, s = experiment.data.dataset, experiment.settings
    model = Portable(experiment.client(number), dataset, getattr(torch, s.dtype))
    about = {
        "format": 1,
        "pfl_fast": __version__,
        "method": experiment.method_name,
        "model": s.model,
        "dataset": dataset.name,
        "data": dataset.source,
        "client": experiment.client_names[number],
        "rounds": experiment.state.rounds_done,
        "input": describe_input(dataset),
        "output": "logits",
        "classes": list(dataset.classes),
        "mean": list(dataset.mean),
        "std": list(dataset.std),
    }
    return ExportedModel(model, about)


def export_client(
    experiment: Experiment, client: int | str, file: str | Path | None = None, format: str = "export"
) -> Path:
    """Writes the model of a client to a file that needs no pfl_fast to be loaded, and returns the file.

    The model takes any number of samples that are not normalised: images ``[b, C, H, W]`` in [0, 1], rows of token
    numbers, or features. It returns logits. Classes and other facts are in the file, as JSON named ``pfl_fast.json``.
    The file is written only if its predictions are those of the experiment.

    Args:
        experiment: a trained experiment, or one from :meth:`pfl_fast.Experiment.load`.
        client: number or name of the client.
        file: file to write, replaced if it exists; None: ``METHOD-CLIENT`` with the format's suffix.
        format: ``"export"`` (a program of ``torch.export``), ``"torchscript"``, ``"onnx"``, or ``"state"``: the
            tensors alone, as safetensors.
    """
    chosen = find_format(format)
    found = portable_client(experiment, client)
    target = Path(file) if file is not None else default_file(found.about, format)
    samples = random_samples(found.about["input"], max(SAMPLES))
    trainer = found.logits
    model = deepcopy(trainer)
    assert isinstance(model, Portable)
    try:
        with atomic.new_file(target) as temporary, quietly():
            try:
                chosen.write(model, samples[:2], temporary, json.dumps(found.about))
                written = model if format == "state" else chosen.read(temporary)[0]
                compare(written, trainer, samples, chosen.title)
            except (RuntimeError, TypeError, ValueError) as error:
                reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
                raise ExportError(f"format: this model cannot be written as a {chosen.title} ({reason})") from error
    except OSError as error:
        raise ExportError(f"{target}: cannot be written ({error.strerror or error}); choose another out") from error
    return target


def compare(written: Logits, trainer: Logits, samples: Tensor, title: str) -> None:
    """Raises unless a written model predicts as the trainer does, with native operators or in plain torch.

    Predictions with hard decisions inside, such as FedPick's mask, may differ between the two by rounding.
    """
    for size in SAMPLES:
        batch = samples[:size]
        with torch.no_grad():
            found, expected = written(batch), [trainer(batch)]
            with in_plain_torch():
                expected.append(trainer(batch))
        errors = torch.stack([(found - e).abs().amax(1) / e.abs().max().clamp_min(1) for e in expected])
        worst = errors.amin(0).max().item()
        if not worst <= TOLERANCE:
            raise ExportError(
                f"the {title} differs from the trainer's predictions by {worst:.2g} of the largest logit on {size} "
                f"samples, more than {TOLERANCE:g}; nothing was written"
            )


def default_file(about: dict[str, Any], format: str) -> Path:
    """Returns the file name for a client's model, such as ``fedcp-client-3.pt2``."""
    words = re.sub(r"[^\w.]+", "-", f"{about['method']}-{about['client']}").strip("-").lower()
    return Path(words + FORMATS[format].suffix)
