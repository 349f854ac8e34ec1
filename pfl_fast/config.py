"""Settings of a run, except the options of its method, and the TOML file that stores both."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tomli_w

from pfl_fast.data.partition_spec import PartitionSpec
from pfl_fast.engine.results.protocol import PROTOCOLS
from pfl_fast.engine.settings import RoundSettings
from pfl_fast.errors import ConfigError
from pfl_fast.options import option, plain


@dataclass(frozen=True)
class Settings(PartitionSpec, RoundSettings):
    """Settings of a run: data, partition, model, batches, rounds and execution."""

    dataset: str = option(
        "tiny",
        "name of a data set (pfl-fast datasets lists them), or path of your own: folder of images, .csv, .json, .npz",
    )
    image_size: int | None = option(
        None, "height and width of images, or number of tokens; none: default size of the data set", minimum=1
    )
    samples: int | None = option(None, "number of samples of a generated data set; none: its default", minimum=1)
    model: str = option("auto", "name of a model, or module:attribute; auto: model of the data set's papers")
    model_options: tuple[str, ...] = option((), "options of the model, such as cut=conv; pfl-fast models lists them")
    head: str | None = option(None, "name of the head inside a module:attribute model, such as fc")
    shuffle: bool = option(True, "shuffle each client's training samples in every epoch")
    drop_last: bool = option(False, "drop the last training batch if it is incomplete")
    augment: str = option(
        "auto",
        "augmentation of training images: none, flip, flip-rotate, crop-flip or resized-crop-flip; auto: that of the "
        "data set's papers",
    )
    normalise: str = option(
        "auto",
        "mean and standard deviation that images are normalised with: half (0.5), imagenet, or none; auto: those of "
        "the data set's papers",
        ["auto", "half", "imagenet", "none"],
    )
    merge_last: int = option(
        0, "add a last training batch of at most N samples to the batch before it; 0: never", minimum=0
    )
    executor: str = option(
        "auto",
        "execution of clients: one after another, on threads, or stacked into one batch; auto: threads on the CPU, "
        "stacks on GPUs",
        ["auto", "sequential", "threads", "batched"],
    )
    workers: int = option(0, "number of threads of the executor; 0: one per core", minimum=0)
    stack: int = option(
        0,
        "maximum number of clients in one stack of the batched executor; 0: as many as fit into the GPU's memory",
        minimum=0,
    )
    device: str = option("auto", "cpu, cuda, cuda:1, or several such as cuda:0,cuda:1; auto: all GPUs, else the CPU")
    ops: str = option("auto", "native operators or their plain-torch reference", ["auto", "native", "reference"])
    capture: str = option(
        "auto",
        "record local steps and repeat them without Python, where the result is the same (auto), or not",
        ["auto", "off"],
    )
    protocol: str = option(
        "default",
        f"rules for the accuracy of the run: {', '.join(PROTOCOLS)}, or POINT,REDUCTION,SELECTION such as "
        "after_agg,clients,best",
    )
    state: str = option("memory", "storage of client state between rounds", ["memory", "disk"])
    data_dir: str | None = option(None, "folder of data sets; none: $PFL_FAST_DATA, else the user's data folder")
    real_data_only: bool = option(False, "fail instead of training on generated data if the data set is missing")
    checkpoint_seconds: float = option(60.0, "seconds between checkpoints; 0: after every round", minimum=0)
    snapshots: int = option(
        0,
        "number of rounds, at equal distances, whose models are kept for pfl-fast analyse; each takes two to three "
        "times the space of all clients' models",
        minimum=0,
    )


# Settings that do not change results: they may change when a run is resumed. Rounds may be added.
NOT_IN_RESULTS = frozenset(
    [
        "executor",
        "workers",
        "stack",
        "device",
        "ops",
        "capture",
        "state",
        "data_dir",
        "real_data_only",
        "checkpoint_seconds",
        "snapshots",
        "protocol",
        "rounds",
    ]
)


def read(file: Path) -> dict[str, Any]:
    """Reads settings and options from a TOML file; its tables are flattened."""
    try:
        return _flat(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{file}: there is no such file") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{file}: not a TOML file ({error})") from None


def read_of_run(file: Path, saved: str | None, log: Callable[[str], None]) -> dict[str, Any]:
    """Reads the settings and options of a run; raises if they were changed since the run wrote them.

    Args:
        file: ``config.toml`` of the run.
        saved: its contents in the newest checkpoint, taken if the file is damaged; None without checkpoints.
        log: receives a message if the file is damaged.
    """
    if saved is None:
        return read(file)
    values = _flat(saved)
    try:
        found = read(file)
        if not found:
            raise ConfigError(f"{file}: is empty")
    except ConfigError as error:
        log(f"{error}; its contents are taken from the checkpoint")
        return values
    names = sorted(name for name in {*values, *found} if values.get(name) != found.get(name))
    # A run that was ended while rounds were added has them in the checkpoint only.
    fewer_rounds = names == ["rounds"] and isinstance(found["rounds"], int) and found["rounds"] < values["rounds"]
    if names and not fewer_rounds:
        shown = "\n".join(f"  {name}: was {values.get(name)!r}, is {found.get(name)!r}" for name in names)
        raise ConfigError(
            f"{file} was changed since the run wrote it:\n{shown}\nundo the changes, or delete the file, which is then "
            "written again; resume --rounds and other options change what may be changed"
        )
    return values


def _flat(text: str) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in tomllib.loads(text).items():
        flat.update(value if isinstance(value, dict) else {name: value})
    return flat


def dumps(method: str, settings: Settings, options: Mapping[str, Any]) -> str:
    """Returns the contents of a file for :func:`read`; values that are None are left out."""

    def table(values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: plain(value) for name, value in values.items() if value is not None}

    return tomli_w.dumps({"method": method, "settings": table(asdict(settings)), "options": table(options)})


def with_rounds(text: str, rounds: int) -> str:
    """Returns the contents of a file for :func:`read` with another number of rounds."""
    document = tomllib.loads(text)
    document["settings"]["rounds"] = rounds
    return tomli_w.dumps(document)


def refuse_changes(before: Mapping[str, Any], changes: Mapping[str, Any]) -> None:
    """Raises if ``changes`` would change the results of a resumed run, naming every difference."""
    refused = [n for n, value in changes.items() if n not in NOT_IN_RESULTS and before.get(n) != plain(value)]
    if refused:
        shown = "\n".join(f"  {name}: was {before.get(name)!r}, asked for {changes[name]!r}" for name in refused)
        raise ConfigError(f"these settings would change the results:\n{shown}\nstart a new run to change them")
    if "rounds" in changes and int(changes["rounds"]) < int(before.get("rounds", 0)):
        raise ConfigError(f"rounds: must be at least {before['rounds']}, the number of the run")
