"""A client's model with the normalisation of its data set, and the description that every file of it carries."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from pfl_fast import ops
from pfl_fast.client_model import ClientModel
from pfl_fast.data.dataset import Dataset
from pfl_fast.errors import PflFastError

INPUT_DTYPES = {"images": torch.float32, "text": torch.int64, "features": torch.float32}


class ExportError(PflFastError):
    """A model cannot be exported, or its file cannot be loaded."""


class Portable(nn.Module):
    """Maps samples as users have them to ``[b, C]`` logits: images in [0, 1], token numbers, or features.

    Args:
        model: the client's model.
        dataset: the data set that the model was trained on; its samples are not used.
        dtype: dtype of the model.
    """

    mean: Tensor | None
    std: Tensor | None

    def __init__(self, model: ClientModel, dataset: Dataset, dtype: torch.dtype) -> None:
        super().__init__()
        self.model = model.requires_grad_(False)
        self.modality, self.dtype = dataset.modality, dtype
        mean, std = (torch.tensor(values, dtype=dtype).view(-1, 1, 1) for values in (dataset.mean, dataset.std))
        self.register_buffer("mean", mean if self.modality == "images" else None)
        self.register_buffer("std", std if self.modality == "images" else None)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Returns the logits."""
        if self.modality != "text":
            x = x.to(self.dtype)
        if self.mean is not None and self.std is not None:
            x = (x - self.mean) / self.std
        logits: Tensor = self.model(x)
        return logits

    def program(self, example: Tensor) -> torch.export.ExportedProgram:
        """Returns the model as a graph of torch's operators for any batch size, without the parts that it never uses.

        Args:
            example: two or more samples.
        """
        with in_plain_torch():
            program = self._program(example)
            if self._drop_parts(program):
                program = self._program(example)
        return program

    def _program(self, example: Tensor) -> torch.export.ExportedProgram:
        return torch.export.export(self, (example,), dynamic_shapes=({0: torch.export.Dim("batch")},))

    def _drop_parts(self, program: torch.export.ExportedProgram) -> list[str]:
        """Removes parts without a tensor that the program uses, such as a frozen extractor of the training loss."""
        read = {node.name for node in program.graph.nodes if node.op == "placeholder" and node.users}
        used = {spec.target for spec in program.graph_signature.input_specs if spec.arg.name in read}
        parts = [name for name, _ in self.model.client.named_children()]
        unused = [part for part in parts if not any(str(t).startswith(f"model.client.{part}.") for t in used)]
        for part in unused:
            delattr(self.model.client, part)
        return unused


@contextmanager
def in_plain_torch() -> Iterator[None]:
    """Runs models without the library's operators, and without gradients."""
    with ops.use("reference"), torch.no_grad():
        yield


def describe_input(dataset: Dataset) -> dict[str, Any]:
    """Returns what the exported model takes, for people and programs."""
    ranges = {"images": [0, 1], "text": [0, max(dataset.vocabulary - 1, 0)], "features": None}
    return {
        "kind": dataset.modality,
        "shape": list(dataset.input_shape),
        "dtype": str(INPUT_DTYPES[dataset.modality]).removeprefix("torch."),
        "range": ranges[dataset.modality],
    }


def random_samples(about: dict[str, Any], count: int, seed: int = 0) -> Tensor:
    """Returns samples of the right kind, to compare two forms of a model."""
    generator = torch.Generator().manual_seed(seed)
    shape, dtype = (count, *about["shape"]), getattr(torch, about["dtype"])
    if about["kind"] == "text":
        return torch.randint(about["range"][1] + 1, shape, generator=generator)
    if about["kind"] == "images":
        return torch.randint(256, shape, generator=generator).to(dtype) / 255
    return torch.randn(shape, generator=generator, dtype=dtype)
