"""All settings of a run that are not a method's own, in one flat table, and the file they are kept in."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tomli_w

from pfl_fast import atomic
from pfl_fast.data.partition_spec import PartitionSpec
from pfl_fast.engine.settings import RoundSettings
from pfl_fast.errors import ConfigError
from pfl_fast.options import option, plain


@dataclass(frozen=True)
class Settings(PartitionSpec, RoundSettings):
    """Data, model, batches, rounds, and how they are run."""

    dataset: str = option("tiny", "name of a data set; pfl-fast datasets lists them")
    image_size: int | None = option(None, "height and width of images; none: as the data set has it", minimum=1)
    samples: int | None = option(None, "size of a generated data set; none: its default", minimum=1)
    model: str = option("auto", "name of a model, or module:attribute; auto: as the data set's papers have it")
    model_options: tuple[str, ...] = option((), "options of the model, such as cut=conv; pfl-fast models lists them")
    head: str | None = option(None, "name of the head inside a model of your own, such as fc")
    shuffle: bool = option(True, "a new order of a client's samples in each epoch")
    drop_last: bool = option(False, "leave out a last batch that is not full")
    augment: str = option("auto", "random changes of training images; auto: as the data set's papers have it")
    executor: str = option("auto", "how clients run side by side", ["auto", "sequential", "threads", "batched"])
    workers: int = option(0, "threads of the executor; 0: one per core", minimum=0)
    stack: int = option(0, "most clients in one stack of the batched executor; 0: all", minimum=0)
    device: str = option("auto", "cpu, cuda, cuda:1, or several such as cuda:0,cuda:1; auto: all GPUs, else the CPU")
    ops: str = option("auto", "native operators or their plain-torch reference", ["auto", "native", "reference"])
    state: str = option("memory", "where clients' state is kept between rounds", ["memory", "disk"])
    data_dir: str | None = option(None, "folder with data sets")
    real_data_only: bool = option(False, "fail rather than train on generated data in place of what is not there")
    checkpoint_seconds: float = option(60.0, "from one checkpoint to the next; 0: after every round", minimum=0)


# How a run is done, not what it computes: may differ when a run is resumed. Rounds may be added.
FREE = frozenset(
    [
        "executor",
        "workers",
        "stack",
        "device",
        "ops",
        "state",
        "data_dir",
        "real_data_only",
        "checkpoint_seconds",
        "rounds",
    ]
)


def read(file: Path) -> dict[str, Any]:
    """A TOML file of settings and options, tables inside it flattened."""
    try:
        values = tomllib.loads(file.read_text())
    except FileNotFoundError:
        raise ConfigError(f"{file}: there is no such file") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{file}: not a TOML file ({error})") from None
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat.update(value if isinstance(value, dict) else {name: value})
    return flat


def write(file: Path, method: str, settings: Settings, options: Mapping[str, Any]) -> None:
    """The file from which :func:`read` gets the same; what is None is left out."""

    def table(values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: plain(value) for name, value in values.items() if value is not None}

    document = {"method": method, "settings": table(asdict(settings)), "options": table(options)}
    atomic.write_text(file, tomli_w.dumps(document))
