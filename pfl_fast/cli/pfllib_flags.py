"""PFLlib's command-line flags: each becomes a setting, an option of the method, a note or an error."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import click

# Flag without dashes: PFLlib's long names, name of the setting. Long names may be written with underscores.
SETTINGS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "data": ((), "dataset"),
    "m": ((), "model"),
    "gr": (("global-rounds",), "rounds"),
    "ls": (("local-steps",), "local_epochs"),
    "lbs": ((), "batch_size"),
    "lr": (("local-learning-rate",), "lr"),
    "nc": (("num-clients",), "clients"),
    "jr": ((), "join_ratio"),
    "rjr": (("random-join-ratio",), "random_join"),
    "eg": (("eval-gap",), "eval_every"),
    "cdr": (("client-drop-rate",), "client_dropout"),
}
# Flags that are combined into one setting.
COMBINED: Mapping[str, tuple[str, ...]] = {
    "ld": ("learning-rate-decay",),
    "ldg": ("learning-rate-decay-gamma",),
    "dev": (),
    "did": ("device-id",),
}
# Flags for an option of the method; an error if the method has no option of that name.
METHOD_OPTIONS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "lam": (("lamda",), "lam"),
    "mu": ((), "mu"),
    "bt": ((), "server_step"),
    "K": ((), "k"),
    "lrp": (("p-learning-rate",), "personal_lr"),
    "M": ((), "m"),
    "alk": (("alphaK",), "alpha_k"),
    "sg": (("sigma",), "sigma"),
    "al": (("alpha",), "alpha"),
    "pls": (("plocal-epochs",), "personal_epochs"),
    "tau": ((), "tau"),
    "fte": (("fine-tuning-epochs",), "fine_tuning_epochs"),
    "et": (("eta",), "eta"),
    "slr": (("server-learning-rate",), "server_lr"),
    "s": (("rand-percent",), "rand_percent"),
    "p": (("layer-idx",), "layer_idx"),
}
OPTION_ALIASES = {("Ditto", "mu"): "lam"}  # by title of the method and flag
IGNORED: Mapping[str, tuple[tuple[str, ...], str]] = {
    "go": (("goal",), "runs are named by --out"),
    "ncl": (("num-classes",), "the number of classes comes from the data set"),
    "nb": ((), "the number of classes comes from the data set"),
    "pv": (("prev",), "pfl-fast resume RUN continues a run"),
    "sfn": (("save-folder-name",), "results are saved in --out"),
    "vs": (("vocab-size",), "the vocabulary comes from the data set"),
    "fd": (("feature-dim",), "the feature width comes from the model"),
}
# Flags without a counterpart: an error unless the value turns the feature off.
UNSUPPORTED: Mapping[str, tuple[tuple[str, ...], str]] = {
    "t": (("times",), "one command trains one run; --seeds 0,1,2 trains several"),
    "ab": (("auto-break",), "training ends after --rounds; Ctrl-C stops it earlier and saves the state"),
    "dlg": (("dlg-eval",), "gradient inversion attacks are not implemented"),
    "nnc": (("num-new-clients",), "clients that join later are not implemented"),
    "fs": (("few-shot",), "--per-client limits the training samples of a client"),
    "tsr": (("train-slow-rate",), "slow clients are not simulated"),
    "ssr": (("send-slow-rate",), "slow clients are not simulated"),
    "ts": (("time-select",), "slow clients are not simulated"),
}
OFF = {"0", "0.0", "false", "no", "off"}
DATASETS = {"fashionmnist": "fashion-mnist", "tinyimagenet": "tiny", "digit5": "digits5", "agnews": "agnews"}
METHOD_NAMES = {"peravg": "per-fedavg"}
MODELS = {"dnn": "mlp", "resnet": "resnet18", "mobilenet": "mobilenet-v2"}
PREFIX = "pfllib_"


@dataclass
class Translated:
    """Settings and options by name, notes about flags without effect, and errors."""

    values: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


def pfllib_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds PFLlib's flags to a command as hidden options; the command receives them as ``pfllib_<flag>``."""
    named = {**SETTINGS, **METHOD_OPTIONS, **IGNORED, **UNSUPPORTED}
    long_names = {**{flag: names for flag, (names, _) in named.items()}, **COMBINED, "algo": ("algorithm",)}
    for flag, names in long_names.items():
        spellings = [f"-{flag}", *(f"--{name}" for name in names)]
        command = click.option(*spellings, PREFIX + flag, hidden=True)(command)
    return command


def translate(flags: Mapping[str, str], title: str, options: Iterable[str]) -> Translated:
    """Translates PFLlib's flags to settings and options.

    Args:
        flags: values as text, by flag without dashes.
        title: title of the method, for messages.
        options: names of the method's options.

    >>> translate({"gr": "10", "ld": "True", "go": "test"}, "FedCP", ["lam"]).values
    {'rounds': '10', 'lr_decay': '0.99'}
    """
    result = Translated()
    options = set(options)
    for flag, value in flags.items():
        if flag in SETTINGS:
            result.values[SETTINGS[flag][1]] = value
        elif flag in METHOD_OPTIONS:
            name = OPTION_ALIASES.get((title, flag), METHOD_OPTIONS[flag][1])
            if name in options:
                result.values[name] = _layers(value) if flag == "p" else value
            else:
                available = f"it has {', '.join(sorted(options))} (--set NAME=VALUE)" if options else "it has none"
                result.errors.append(f"-{flag}: {title} has no option {name!r}; {available}")
        elif flag in IGNORED:
            result.notes.append(f"-{flag} is ignored: {IGNORED[flag][1]}")
        elif flag in UNSUPPORTED and value.lower() not in (OFF | {"1"} if flag == "t" else OFF):
            result.errors.append(f"-{flag} {value}: {UNSUPPORTED[flag][1]}")
    _learning_rate_decay(flags, result)
    _device(flags, result)
    return result


def _layers(tensors: str) -> str:
    """Converts PFLlib's number of tensors for FedALA, where weight and bias count as two, to a number of layers."""
    return str(max((int(tensors) + 1) // 2, 1)) if tensors.isdigit() else tensors


def _learning_rate_decay(flags: Mapping[str, str], result: Translated) -> None:
    if flags.get("ld", "false").lower() not in OFF:
        result.values["lr_decay"] = flags.get("ldg", "0.99")
    elif "ldg" in flags:
        result.notes.append("-ldg is ignored: the learning rate only decays with -ld True")


def _device(flags: Mapping[str, str], result: Translated) -> None:
    numbers = [number.strip() for number in flags["did"].split(",")] if "did" in flags else []
    if flags.get("dev", "cuda") == "cuda" and numbers and numbers != ["0"]:
        result.values["device"] = ",".join(f"cuda:{number}" for number in numbers)
    elif "dev" in flags:
        result.values["device"] = flags["dev"]


def canonical_name(name: str, known: Iterable[str], renamed: Mapping[str, str]) -> str:
    """Returns the known name that equals ``name`` but for case, dashes and PFLlib's spelling, else ``name``.

    >>> canonical_name("Cifar10", ["cifar10"], {}), canonical_name("ResNet", ["resnet18"], {"resnet": "resnet18"})
    ('cifar10', 'resnet18')
    >>> canonical_name("my.module:Net", ["cnn"], {})
    'my.module:Net'
    """
    letters = _letters(name)
    return renamed.get(letters) or next((k for k in known if _letters(k) == letters), name)


def _letters(name: str) -> str:
    return "".join(c for c in name.lower() if c not in "-_ ")
