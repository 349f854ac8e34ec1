"""PFLlib's flags, so that its command lines work here: each becomes a setting, a note or an error that says why not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import click

# Flag without dashes: PFLlib's long names, our setting. Long names may be written with underscores.
SAME: Mapping[str, tuple[tuple[str, ...], str]] = {
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
# These are put together from two.
COMBINED: Mapping[str, tuple[str, ...]] = {
    "ld": ("learning-rate-decay",),
    "ldg": ("learning-rate-decay-gamma",),
    "dev": (),
    "did": ("device-id",),
}
# A method's own option, if it has one of that name.
METHOD: Mapping[str, tuple[tuple[str, ...], str]] = {
    "lam": (("lamda",), "lam"),
    "mu": ((), "mu"),
    "bt": ((), "beta"),
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
SPELT_OTHERWISE = {("Ditto", "mu"): "lam"}  # by title and flag
NOTES: Mapping[str, tuple[tuple[str, ...], str]] = {
    "go": (("goal",), "runs are told apart by --out"),
    "ncl": (("num-classes",), "the number of classes comes from the data set"),
    "nb": ((), "the number of classes comes from the data set"),
    "pv": (("prev",), "pfl-fast resume RUN goes on with a run"),
    "sfn": (("save-folder-name",), "everything is saved in --out"),
    "vs": (("vocab-size",), "the vocabulary comes from the data set"),
    "fd": (("feature-dim",), "the width of features comes from the model"),
}
# Nothing like it here; fine as long as it is off.
ABSENT: Mapping[str, tuple[tuple[str, ...], str]] = {
    "t": (("times",), "one command is one run: repeat it with other values of --seed"),
    "ab": (("auto-break",), "training ends after --rounds; Ctrl-C ends it before, and keeps everything"),
    "dlg": (("dlg-eval",), "there is no attack on gradients"),
    "nnc": (("num-new-clients",), "there are no clients that join later"),
    "fs": (("few-shot",), "--per-client limits the training samples of a client"),
    "tsr": (("train-slow-rate",), "slow clients are not simulated"),
    "ssr": (("send-slow-rate",), "slow clients are not simulated"),
    "ts": (("time-select",), "slow clients are not simulated"),
}
OFF = {"0", "0.0", "false", "no", "off"}
DATASETS = {"fashionmnist": "fashion-mnist", "tinyimagenet": "tiny", "digit5": "digits5", "agnews": "agnews"}
METHODS = {"peravg": "per-fedavg"}
MODELS = {"dnn": "mlp", "resnet": "resnet18", "mobilenet": "mobilenet-v2"}
PREFIX = "pfllib_"


@dataclass
class Translated:
    """Our settings and options, what the user should know, and what cannot be done."""

    values: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


def pfllib_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds all of PFLlib's flags to a command, hidden; their values arrive as ``pfllib_<flag>``."""
    named = {**SAME, **METHOD, **NOTES, **ABSENT}
    long_names = {**{flag: names for flag, (names, _) in named.items()}, **COMBINED, "algo": ("algorithm",)}
    for flag, names in long_names.items():
        spellings = [f"-{flag}", *(f"--{name}" for name in names)]
        command = click.option(*spellings, PREFIX + flag, hidden=True)(command)
    return command


def translate(flags: Mapping[str, str], title: str, options: Iterable[str]) -> Translated:
    """Says what PFLlib's flags mean here.

    Args:
        flags: text by flag, without dashes.
        title: the method's, for messages.
        options: names of the method's options.

    >>> translate({"gr": "10", "ld": "True", "go": "test"}, "FedCP", ["lam"]).values
    {'rounds': '10', 'lr_decay': '0.99'}
    """
    result = Translated()
    options = set(options)
    for flag, value in flags.items():
        if flag in SAME:
            result.values[SAME[flag][1]] = value
        elif flag in METHOD:
            name = SPELT_OTHERWISE.get((title, flag), METHOD[flag][1])
            if name in options:
                result.values[name] = _layers(value) if flag == "p" else value
            else:
                there = f"it has {', '.join(sorted(options))} (--set NAME=VALUE)" if options else "it has no options"
                result.errors.append(f"-{flag}: {title} has no option {name!r}; {there}")
        elif flag in NOTES:
            result.notes.append(f"-{flag} is not used: {NOTES[flag][1]}")
        elif flag in ABSENT and value.lower() not in (OFF | {"1"} if flag == "t" else OFF):
            result.errors.append(f"-{flag} {value}: {ABSENT[flag][1]}")
    _learning_rate_decay(flags, result)
    _device(flags, result)
    return result


def _layers(tensors: str) -> str:
    """PFLlib counts FedALA's layers in tensors, weight and bias apart."""
    return str(max((int(tensors) + 1) // 2, 1)) if tensors.isdigit() else tensors


def _learning_rate_decay(flags: Mapping[str, str], result: Translated) -> None:
    if flags.get("ld", "false").lower() not in OFF:
        result.values["lr_decay"] = flags.get("ldg", "0.99")
    elif "ldg" in flags:
        result.notes.append("-ldg is not used: without -ld True the learning rate stays the same")


def _device(flags: Mapping[str, str], result: Translated) -> None:
    numbers = [number.strip() for number in flags["did"].split(",")] if "did" in flags else []
    if flags.get("dev", "cuda") == "cuda" and numbers and numbers != ["0"]:
        result.values["device"] = ",".join(f"cuda:{number}" for number in numbers)
    elif "dev" in flags:
        result.values["device"] = flags["dev"]


def our_name(name: str, known: Iterable[str], renamed: Mapping[str, str]) -> str:
    """A name in our spelling if PFLlib's spelling of it is recognised; else as it is.

    >>> our_name("Cifar10", ["cifar10"], {}), our_name("ResNet", ["resnet18"], {"resnet": "resnet18"})
    ('cifar10', 'resnet18')
    >>> our_name("my.module:Net", ["cnn"], {})
    'my.module:Net'
    """
    letters = _letters(name)
    return renamed.get(letters) or next((k for k in known if _letters(k) == letters), name)


def _letters(name: str) -> str:
    return "".join(c for c in name.lower() if c not in "-_ ")
