"""Settings as command-line options: made from their dataclass, and shown in groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

import click

from pfl_fast.config import Settings
from pfl_fast.errors import ConfigError
from pfl_fast.options import Described, describe

SETTINGS = {described.name: described for described in describe(Settings)}
# Parameters of the commands that are no settings, such as --out, take their place in these lists too.
GROUPS: Mapping[str, Sequence[str]] = {
    "Common options": (
        "dataset", "model", "clients", "partition", "beta", "rounds", "local_epochs", "batch_size", "lr", "join_ratio",
        "seed", "executor", "device", "ops", "eval_every", "out", "data_dir", "real_data_only", "preset", "assignments",
        "config_file", "quiet",
    ),
    "Data and partition": (
        "image_size", "samples", "augment", "classes_per_client", "per_client", "draw_clients", "partition_seed",
        "legacy_partition", "test", "test_fraction", "validation", "shuffle", "drop_last",
    ),
    "Model and optimizer": (
        "model_options", "head", "dtype", "batch_norm", "lr_decay", "momentum", "weight_decay", "keep_momentum",
    ),
    "Rounds and evaluation": (
        "random_join", "client_dropout", "broadcast_to_all", "train_all", "on_nan", "eval_at", "eval_clients",
        "eval_global", "eval_initial", "metrics", "drop_last_test",
    ),
    "How it runs": ("workers", "stack", "state", "checkpoint_seconds"),
}  # fmt: skip
PLACES = [name for names in GROUPS.values() for name in names]
METAVARS = {"bool": None, "int": "INTEGER", "float": "NUMBER", "str": "TEXT", "tuple[str, ...]": "TEXT,..."}


def setting_options(names: Iterable[str]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds an option for each setting. The command gets text, or None where the user said nothing.

    Text is not converted here: settings are checked all together later, so that every mistake is shown at once.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for name in reversed(list(names)):
            command = setting_option(SETTINGS[name])(command)
        return command

    return decorate


def setting_option(setting: Described) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """One setting as an option: its name with dashes, what it does, its type or choices, its default."""
    flag = setting.name.replace("_", "-")
    default = "" if setting.default in (None, ()) else f"  [{str(setting.default).lower()}]"
    help_text = setting.help + default
    if setting.type == "bool":
        return click.option(f"--{flag}/--no-{flag}", setting.name, default=None, help=help_text)
    kind = METAVARS[setting.type.removesuffix(" | None")]
    metavar = "|".join(str(choice).lower() for choice in setting.choices) or kind
    if setting.type.startswith("tuple"):  # a list can be repeated, under its singular name
        names = (f"--{flag.removesuffix('s')}", f"--{flag}", setting.name)
        return click.option(*names, metavar=metavar, help=help_text, multiple=True, callback=_join)
    return click.option(f"--{flag}", setting.name, metavar=metavar, help=help_text)


def _join(_context: click.Context, _parameter: click.Parameter, values: Sequence[str]) -> str | None:
    return ",".join(values) or None


def raise_all(errors: Sequence[str]) -> NoReturn:
    """One line for each mistake in the settings."""
    raise ConfigError(errors[0] if len(errors) == 1 else "\n  ".join(["these settings cannot be used:", *errors]))


def given(values: Mapping[str, Any]) -> dict[str, Any]:
    """What the user said, so that a method's own defaults hold for the rest."""
    return {name: value for name, value in values.items() if value is not None}


class GroupedCommand(click.Command):
    """Shows its options in the groups above; those in none come last."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the options' part of ``--help``."""
        options = [p for p in self.get_params(ctx) if isinstance(p, click.Option)]
        records = {str(p.name): record for p in options if (record := p.get_help_record(ctx))}
        groups = {**GROUPS, "More options": [name for name in records if name not in PLACES]}
        for title, names in groups.items():
            rows = [records[name] for name in names if name in records]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)
