"""Samples and errors of ``take_normalized`` for the contract test.

Images are an option of a sample, not one of its tensors, because they must be contiguous.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pfl_fast import ops
from pfl_fast.ops import reference
from tests.ops.operators import BadInput, Operator, Sample


def call(index: Tensor, mean: Tensor, std: Tensor, *, images: Tensor, **options: Any) -> tuple[Tensor, ...]:
    return (ops.take_normalized(images.to(index.device), index, mean, std, **options),)


def expected(index: Tensor, mean: Tensor, std: Tensor, *, images: Tensor, **options: Any) -> tuple[Tensor, ...]:
    settings = {"channels_last": True, "dtype": torch.float32, **options}
    return (reference.take_normalized(images.to(index.device), index, mean, std, **settings),)


def image_set(*shape: int) -> Tensor:
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(1), dtype=torch.uint8)


SCRIPTED = image_set(8, 5, 7, 3)


def script(index: Tensor, mean: Tensor, std: Tensor, images: Tensor = SCRIPTED) -> list[Tensor]:
    return [torch.ops.pfl_fast.take_normalized(images, index, mean, std, True, torch.float32)]


def sample(name: str, index: Tensor, images: Tensor, dtype: torch.dtype, **options: Any) -> Sample:
    channels = images.shape[-1]
    mean = torch.linspace(0.3, 0.5, channels)
    return Sample(name, (index, mean, mean / 2 + 0.05), {"images": images, "dtype": dtype, **options})


def samples(dtype: torch.dtype) -> list[Sample]:
    every_byte = torch.arange(256, dtype=torch.uint8).view(1, 16, 16, 1).expand(-1, -1, -1, 3).contiguous()
    return [
        sample("colour", torch.tensor([3, 1, 3]), SCRIPTED, dtype),
        sample("colour, channels first", torch.tensor([3, 1, 3]), SCRIPTED, dtype, channels_last=False),
        sample("one image", torch.tensor(2), SCRIPTED, dtype),
        sample("clients", torch.tensor([[0, 1], [2, 7], [7, 0]]), SCRIPTED, dtype),
        sample("clients, channels first", torch.tensor([[0, 1], [2, 7]]), SCRIPTED, dtype, channels_last=False),
        sample("grey", torch.tensor([4, 0]), image_set(5, 28, 28, 1), dtype),
        sample("grey, channels first", torch.tensor([4, 0]), image_set(5, 3, 1, 1), dtype, channels_last=False),
        sample("many channels", torch.tensor([1, 1]), image_set(2, 3, 5, 7), dtype),
        sample("every byte", torch.tensor([0]), every_byte, dtype),
        sample("more than a thread's share", torch.arange(40).flip(0), image_set(40, 31, 67, 3), dtype),
        sample("more channels than a run has", torch.tensor([1, 0]), image_set(2, 2, 3, 193), dtype),
    ]


def empty_samples() -> list[Sample]:
    return [
        sample("no index", torch.zeros(0, dtype=torch.int64), SCRIPTED, torch.float32),
        sample("no pixels", torch.tensor([0, 1]), image_set(2, 0, 3, 3), torch.float32),
        sample("no channels", torch.tensor([0, 1]), image_set(2, 2, 3, 0), torch.float32),
    ]


def raw_calls():
    index, mean, std = samples(torch.float32)[3].tensors
    raw = torch.ops.pfl_fast.take_normalized.default
    return [
        (raw, (SCRIPTED, index, mean, std, True, torch.float32)),
        (raw, (SCRIPTED, index, mean, std, False, torch.bfloat16)),
    ]


def bad_inputs() -> list[BadInput]:
    index, norm = torch.tensor([0]), torch.full((3,), 0.5)

    def bad(name: str, message: str, *given: Any, **options: Any) -> BadInput:
        arguments = [*given, *(SCRIPTED, index, norm, norm)[len(given) :]]
        return BadInput(name, lambda: ops.take_normalized(*arguments, **options), f"take_normalized: {message}")

    return [
        bad("floats", r"images must be uint8, got .*[Ff]loat", SCRIPTED.float()),
        bad("three dimensions", r"images must be \[count.*got shape \[8, 5, 7\]", SCRIPTED[..., 0].contiguous()),
        bad("not contiguous", r"images must be contiguous.*call .contiguous\(\) once", SCRIPTED.transpose(1, 2)),
        bad("index dtype", r"index must be an int64 tensor, got .*([Ii]nt)", SCRIPTED, index.int()),
        bad("index device", r"index must be on the device of images, cpu, got ", SCRIPTED, index.to("meta")),
        bad("too large", r"index must be in \[0, 8\).*got 8", SCRIPTED, torch.tensor([0, 8])),
        bad("negative", r"index must be in \[0, 8\).*got -1", SCRIPTED, torch.tensor([[0], [-1]])),
        bad("mean", r"mean must be \[3\].*got shape \[2\]", SCRIPTED, index, norm[:2]),
        bad("std", r"std must be \[3\].*got shape \[\]", SCRIPTED, index, norm, norm[0]),
        bad("list", r"std must be \[3\].*got shape \[1\]", SCRIPTED, index, norm, [0.5]),
        bad("integers", r"std must be float64.*got .*(Long|int64)", SCRIPTED, index, norm, norm.long()),
        bad("dtype", r"dtype must be float64.*got .*(Long|int64)", dtype=torch.int64),
        bad("no dtype", r"dtype must be a torch.dtype, got str", dtype="float32"),
        bad("array", r"images must be a tensor, got ndarray", SCRIPTED.numpy()),
        bad("number", r"index must be a tensor, got int", SCRIPTED, 0),
        bad("text", r"mean must be a tensor or a list of numbers, got str", SCRIPTED, index, "0.5"),
    ]


OPERATOR = Operator(
    name="take_normalized",
    call=call,
    reference=expected,
    samples=samples,
    empty_samples=empty_samples,
    vmap_dims=[(0, None, None), (None, 0, 0), (0, 1, None)],
    script=script,
    raw_calls=raw_calls,
    bad_inputs=bad_inputs,
    registered=["take_normalized"],
    differentiable=False,
)
