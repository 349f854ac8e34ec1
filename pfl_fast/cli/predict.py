"""``pfl-fast predict``: classes of images, by a client's model of a run or an exported model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pfl_fast.cli.trained_run import chosen_client, client_option, json_option, open_run, trust_option
from pfl_fast.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from pfl_fast.export import ExportedModel

CHUNK = 100  # samples in memory at once


@click.command()
@click.argument("model", type=click.Path(path_type=Path), metavar="RUN|FILE")
@click.argument("images", nargs=-1, required=True, type=click.Path(path_type=Path))
@client_option("name or number of the client of a run")
@click.option("--top", type=click.IntRange(min=1), default=3, help="number of most probable classes to show  [3]")
@json_option
@trust_option
def predict(model: Path, images: tuple[Path, ...], client: str | None, top: int, as_json: bool, trust: bool) -> None:
    """Print the classes of IMAGES, predicted by a client of a run or by an exported model.

    IMAGES are picture files, which are resized, or folders of them; or .npy files with one sample per row, in the
    layout of the data set, such as [n, H, W, C] uint8. Probabilities are the softmax of the model's logits. Load
    exported files only from people you trust.

    \b
    Examples:
      pfl-fast predict runs/fedcp-digits-1 --client 3 digit.png
      pfl-fast predict fedcp-client-3.pt2 photos/
      pfl-fast predict fedcp-client-3.onnx photos/one.jpg photos/two.jpg --json
    """
    if missing := [str(path) for path in (model, *images) if not path.exists()]:
        raise ConfigError(f"there is no file or folder {', '.join(missing)}")
    found = opened(model, client, trust)
    rows = [
        row for name, samples in inputs(images, found.about["input"]) for row in predicted(found, name, samples, top)
    ]
    click.echo(json.dumps(rows, indent=2) if as_json else as_table(rows))


def opened(model: Path, client: str | None, trust: bool) -> ExportedModel:
    """Returns the model of a client of a run, or an exported one."""
    if model.is_dir():
        experiment = open_run(model, trust)
        number = chosen_client(experiment, client)

        from pfl_fast.export import portable_client

        return portable_client(experiment, number)
    if client is not None:
        raise ConfigError(f"--client: {model} is the model of one client; leave --client out")

    from pfl_fast.export import load_exported

    return load_exported(model)


def inputs(paths: tuple[Path, ...], about: dict[str, Any]) -> Iterator[tuple[list[dict[str, Any]], Tensor]]:
    """Yields chunks of samples ``[n, *shape]``, with the file of each."""
    import torch

    from pfl_fast.export.samples import picture, rows

    pictures: list[Path] = []
    for path in expanded(paths):
        if path.suffix == ".npy":
            values = rows(path, about)
            for first in range(0, len(values), CHUNK):
                part = values[first : first + CHUNK]
                yield [{"file": str(path), "sample": first + n} for n in range(len(part))], part
        else:
            pictures.append(path)
    for first in range(0, len(pictures), CHUNK):
        files = pictures[first : first + CHUNK]
        yield [{"file": str(file)} for file in files], torch.stack([picture(file, about) for file in files])


def expanded(paths: tuple[Path, ...]) -> Iterator[Path]:
    """Yields files; a folder becomes the pictures in it, by name."""
    from pfl_fast.data.sources.images import SUFFIXES

    for path in paths:
        if not path.is_dir():
            yield path
            continue
        found = sorted(file for file in path.iterdir() if file.suffix.lower() in SUFFIXES)
        if not found:
            raise ConfigError(f"{path}: has no {', '.join(SUFFIXES)} files")
        yield from found


def predicted(model: ExportedModel, names: list[dict[str, Any]], samples: Tensor, top: int) -> list[dict[str, Any]]:
    """Returns file, class, probability and the most probable classes of each sample."""
    classes = model.about["classes"]
    best = model.probabilities(samples).topk(min(top, len(classes)), dim=1)
    found = []
    for name, values, indices in zip(names, best.values.tolist(), best.indices.tolist(), strict=True):
        ranked = [{"class": classes[i], "probability": round(p, 6)} for p, i in zip(values, indices, strict=True)]
        found.append({**name, **ranked[0], "top": ranked})
    return found


def as_table(rows: list[dict[str, Any]]) -> str:
    """Returns one line per sample: file, then classes with their probabilities."""
    names = [row["file"] + (f"[{row['sample']}]" if "sample" in row else "") for row in rows]
    width = max(map(len, names), default=0)
    widest = max((len(entry["class"]) for row in rows for entry in row["top"]), default=0)
    cells = [[f"{e['class']:{widest}} {e['probability']:.3f}" for e in row["top"]] for row in rows]
    return "\n".join(f"{name:{width}}  {'   '.join(cell)}" for name, cell in zip(names, cells, strict=True))
