"""Command-line options for settings, generated from their dataclass and grouped in ``--help``."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import click

from pfl_fast.config import Settings
from pfl_fast.options import OptionInfo, describe

SETTINGS = {info.name: info for info in describe(Settings)}
# Includes parameters of the commands that are not settings, such as --out.
GROUPS: Mapping[str, Sequence[str]] = {
    "Common options": (
        "methods", "rows", "columns", "seeds", "scale", "dry_run", "grids", "partition_per_seed", "runs",
        "dataset", "model", "clients", "partition", "beta", "rounds", "local_epochs", "batch_size", "lr", "join_ratio",
        "seed", "protocol", "executor", "device", "ops", "eval_every", "out", "data_dir", "real_data_only", "preset",
        "trackers", "assignments", "config_file", "trust", "quiet",
    ),
    "Data and partition": (
        "image_size", "samples", "augment", "normalise", "classes_per_client", "superclass_cuts", "min_samples",
        "per_client", "per_domain", "draw_clients", "partition_seed", "legacy_partition", "test", "test_fraction",
        "test_by_class", "validation", "shuffle", "drop_last", "merge_last",
    ),
    "Model and optimizer": (
        "model_options", "head", "dtype", "precision", "deterministic", "batch_norm", "lr_schedule", "lr_decay",
        "lr_steps", "lr_warmup", "momentum", "weight_decay", "keep_momentum", "finetune_epochs", "finetune_lr",
    ),
    "Rounds and evaluation": (
        "random_join", "client_dropout", "broadcast_to_all", "train_all", "on_nan", "eval_at", "eval_clients",
        "eval_global", "eval_initial", "metrics", "drop_last_test",
    ),
    "Execution": ("workers", "stack", "capture", "debug", "state", "checkpoint_seconds", "snapshots"),
}  # fmt: skip
OPTION_ORDER = [name for names in GROUPS.values() for name in names]
METAVARS = {
    "bool": None,
    "int": "INTEGER",
    "float": "NUMBER",
    "str": "TEXT",
    "tuple[str, ...]": "TEXT,...",
    "tuple[int, ...]": "INTEGER,...",
}


def setting_options(
    names: Iterable[str], show_defaults: bool = True
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds an option for each setting. The command receives text, or None for options that are not given.

    Text is converted later, together with values from other sources, so that one error lists all mistakes.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for name in reversed(list(names)):
            command = setting_option(SETTINGS[name], show_defaults)(command)
        return command

    return decorate


def setting_option(setting: OptionInfo, show_default: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Returns a decorator that adds one setting as an option: name with dashes, type or choices, help, default."""
    flag = setting.name.replace("_", "-")
    has_default = show_default and setting.default not in (None, ())
    help_text = setting.help + (f"  [{str(setting.default).lower()}]" if has_default else "")
    if setting.type.startswith("bool"):
        return click.option(f"--{flag}/--no-{flag}", setting.name, default=None, help=help_text)
    choices = "|".join(str(choice).lower() for choice in setting.choices)
    metavar = choices or METAVARS[setting.type.removesuffix(" | None")]
    if setting.type.startswith("tuple"):  # a list can be repeated, under its singular name
        names = (f"--{flag.removesuffix('s')}", f"--{flag}", setting.name)
        return click.option(*names, metavar=metavar, help=help_text, multiple=True, callback=_join)
    return click.option(f"--{flag}", setting.name, metavar=metavar, help=help_text)


def _join(_context: click.Context, _parameter: click.Parameter, values: Sequence[str]) -> str | None:
    return ",".join(values) or None


def given(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values that the user gave; the others keep the defaults of the method."""
    return {name: value for name, value in values.items() if value is not None}


class GroupedCommand(click.Command):
    """Lists options by group in ``--help``, options without a group last, and explains unknown options."""

    def remedy(self, name: str) -> str:  # noqa: ARG002 for subclasses
        """Returns the end of the error about the unknown option ``name``; empty: click's own error."""
        return ""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses the command line and keeps it, to print the command that continues."""
        ctx.meta["arguments"] = [*args]
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if remedy := self.remedy(error.option_name.lstrip("-").replace("-", "_")):
                raise click.UsageError(f"{error.option_name} {remedy}", ctx) from None
            raise

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the options of ``--help``."""
        options = [p for p in self.get_params(ctx) if isinstance(p, click.Option)]
        records = {str(p.name): record for p in options if (record := p.get_help_record(ctx))}
        groups = {**GROUPS, "Other options": [name for name in records if name not in OPTION_ORDER]}
        for title, names in groups.items():
            rows = [records[name] for name in names if name in records]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def _show_debug_messages(_context: click.Context, _option: click.Parameter, shown: bool) -> None:
    if shown:
        logging.basicConfig(format="%(name)s: %(message)s")
        logging.getLogger("pfl_fast").setLevel(logging.DEBUG)


debug_option = click.option(
    "--debug",
    is_flag=True,
    expose_value=False,
    callback=_show_debug_messages,
    help="say which local steps run eagerly, and why",
)
TRACKERS = ("tensorboard", "wandb", "mlflow")
log_option = click.option(
    "--log",
    "trackers",
    multiple=True,
    type=click.Choice(TRACKERS),
    help="send settings and results to a tracker while the run trains; repeatable",
)


def check_trackers(names: Sequence[str]) -> None:
    """Raises if the package of a tracker is missing, before anything is written."""
    if names:
        from pfl_fast.trackers import check_installed

        check_installed(names)


def as_flags(message: str) -> str:
    """Returns a message with settings written as in Python written as on the command line.

    >>> as_flags('try on_nan="skip", eval_global=True or stack=2; lam=1')
    'try --on-nan skip, --eval-global or --stack 2; lam=1'
    """

    def flag(found: re.Match[str]) -> str:
        name, value = found[1].replace("_", "-"), found[2].strip('"')
        if found[1] not in SETTINGS:
            return found[0]
        switches = {"True": f"--{name}", "False": f"--no-{name}"}
        return switches.get(value, f"--{name} {value}")

    return re.sub(r"(?<![\w.\"'=])([a-z_]+)=(\"\w+\"|True|False|N\b|\d+(?:\.\d+)?)", flag, message)
