"""Text printed before and after a run: its settings, its results and commands to try next."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from os.path import relpath
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Any

import click

from pfl_fast.cli.setting_options import OPTION_ORDER, SETTINGS
from pfl_fast.data.dataset import STAND_IN, Dataset
from pfl_fast.engine.results.protocol import POINTS, REDUCTIONS, SELECTIONS
from pfl_fast.options import BOOLEANS
from pfl_fast.progress import ACCURACIES, duration

if TYPE_CHECKING:
    from pfl_fast.data.partition import Partition
    from pfl_fast.experiment import Experiment

DOMAINS = 20  # with their accuracy in the summary
NAMES = 8  # of clients in one line
BYTES = {"float32": 4, "float64": 8}


def banner(experiment: Experiment, folder: Path) -> str:
    """Returns the description of the run, printed before its first round."""
    dataset, partition, sizes = experiment.dataset, experiment.partition, experiment.data.train_sizes
    shape = "x".join(map(str, dataset.input_shape))
    facts = {
        "method": f"{experiment.method_class.title}: {experiment.method_class.summary}",
        "data": f"{dataset.name} ({dataset.source}): {len(dataset):,} samples of {shape}, "
        f"{len(dataset.classes)} classes",
        "partition": f"{partition.rule}, {partition.clients} clients{names_of(partition)} with {sizes.min():,} to "
        f"{sizes.max():,} training samples, hash {partition.hash[:12]}",
        "model": model_line(experiment),
        "rounds": rounds_line(experiment),
        "executor": executor_line(experiment),
        "memory": str(experiment.memory()),
        "accuracy": accuracy_line(experiment),
        "results": str(folder),
    }
    lines = [f"{click.style(f'{name:10}', bold=True)}{text}" for name, text in facts.items()]
    return "\n".join([*lines, *stand_in_warning(experiment.dataset)])


def names_of(partition: Partition) -> str:
    """Returns the names of the clients in parentheses, the first ones if there are many; empty if they have none."""
    shown = [*partition.names[:NAMES], *["..."] * (len(partition.names) > NAMES)]
    return f" ({', '.join(shown)})" if shown else ""


def model_line(experiment: Experiment) -> str:
    """Returns the model and how many parameters a client trains and uploads."""
    part_table = experiment.part_table
    trained = sum(e.value.numel() for e in part_table.specs if e.parameter and part_table.parts[e.part].trained)
    uploaded = sum(e.value.numel() for e in part_table.uploaded)
    return f"{experiment.settings.model}: a client trains {trained:,} parameters and uploads {uploaded:,}"


def executor_line(experiment: Experiment) -> str:
    """Returns executor, devices and number of clients that train at once."""
    executor = experiment.round.executor
    devices = ", ".join(dict.fromkeys(str(worker.device) for worker in executor.workers))
    at_once = f", {len(executor.workers)} clients at a time" if len(executor.workers) > 1 else ""
    ranks = f", on each of {experiment.ranks.size} ranks" if experiment.ranks.size > 1 else ""
    return f"{executor.name} on {devices}{at_once}{ranks}"


def rounds_line(experiment: Experiment) -> str:
    """Returns number of rounds, first round of a resumed run, and the main training settings."""
    s, done = experiment.settings, experiment.round.state.rounds_done
    resumed = "" if not done else f" from round {done + 1}" if done < experiment.round.last_round else ", all done"
    return (
        f"{s.rounds}{resumed}, {s.join_ratio:.0%} of the clients per round, local epochs {s.local_epochs}, "
        f"batch size {s.batch_size}, lr {s.lr:g}, seed {s.seed}"
    )


def accuracy_line(experiment: Experiment) -> str:
    """Returns how clients' accuracies are reduced, during the run and for its result."""
    protocol = experiment.protocol
    return f"by samples in each round; of the run by protocol {protocol.name}: {protocol}"


def measured_line(folder: Path) -> str:
    """Returns the accuracy of a run by its protocol, from ``summary.json``."""
    entry = json.loads((folder / "summary.json").read_text())["protocol"]
    if entry is None:
        return "no accuracy: the clients were not tested"
    finetuned, at = entry["after_finetune"], "" if entry["round"] is None else f" (round {entry['round']})"
    rounds = "" if finetuned else f", {SELECTIONS[entry['selection']]}{at}"
    how = f"{POINTS['after_finetune' if finetuned else entry['point']]}, {REDUCTIONS[entry['reduction']]}{rounds}"
    found = entry["domains"] if 1 < len(entry["domains"]) <= DOMAINS else {}
    domains = "".join(f", {name} {value:.4f}" for name, value in found.items())
    return f"{entry['accuracy']:.4f} by protocol {entry['name']}: {how}{domains}"


def stand_in_warning(dataset: Dataset) -> list[str]:
    """Returns a warning if generated data stands in for the data set, else nothing."""
    if dataset.source != STAND_IN:
        return []
    name = dataset.name
    text = (
        f"SYNTHETIC STAND-IN for {name}: the data is generated; accuracies say nothing about the real data set.\n"
        f"  pfl-fast data get {name}   downloads it;   --real-data-only   refuses to train without it"
    )
    return [click.style(text, fg="yellow", bold=True)]


def one_line_summary(experiment: Experiment, folder: Path) -> str:
    """Returns method, data, rounds, accuracies by samples, accuracy by the protocol, and folder in one line."""
    summary = experiment.summary()
    scores = [
        f"{t} {summary[n]['last']:.4f} (best {summary[n]['best']:.4f})" for n, t in ACCURACIES.items() if n in summary
    ]
    scores = [*scores, f"by samples; {measured_line(folder)}"]
    data = f"{experiment.dataset.name} ({experiment.dataset.source})"
    return f"{experiment.method_name} on {data}, {summary['rounds']} rounds: {', '.join(scores)}; {folder}"


def final_summary(experiment: Experiment, folder: Path, seconds: float, arguments: Sequence[str]) -> str:
    """Returns accuracies, speed, traffic, the folder of results and commands to try next.

    ``arguments`` are the command-line arguments that repeat the settings of the run with another method.
    """
    summary = experiment.summary()
    data = f"{experiment.dataset.name} ({experiment.dataset.source})"
    title = f"{experiment.method_class.title} on {data}: {summary['rounds']} rounds, {duration(seconds)}"
    lines = [click.style(title, bold=True), *accuracy_table(summary), measured_line(folder)]
    if "seconds_per_round" in summary:
        width = BYTES[experiment.settings.dtype]
        up, down = (summary[name] * width / 1e6 for name in ("uploaded_values", "downloaded_values"))
        lines.append(
            f"{summary['seconds_per_round']:.2f} s/round, {summary['samples_per_second']:,.0f} samples/s trained; "
            f"{up:,.1f} MB uploaded, {down:,.1f} MB downloaded by clients"
        )
    lines.append(f"results in {folder}: metrics.jsonl, clients.csv, summary.json, config.toml, checkpoint/")
    lines += stand_in_warning(experiment.dataset)
    lines.append(click.style("try next", bold=True))
    lines += [f"  {command}\n      {purpose}" for command, purpose in next_commands(experiment, folder, arguments)]
    return "\n".join(lines)


def accuracy_table(summary: Mapping[str, Any]) -> list[str]:
    """Returns best, last and mean of the last five accuracies: after aggregation, after local training, global.

    Accuracies are by samples, but for the mean over clients of each client's best.
    """
    titles = {**ACCURACIES, "test_accuracy_global": "global model"}
    rows = {title: summary[name] for name, title in titles.items() if name in summary}
    lines = [f"  {'test accuracy, by samples':34}{'best':>6} {'(round)':9}{'last':>8}{'last 5':>10}"]
    for title, row in rows.items():
        at = f"({row['best_round']})"
        lines.append(f"  {title:34}{row['best']:6.4f} {at:9}{row['last']:8.4f}{row['last5']:10.4f}")
        if "best_per_client" in row:
            lines.append(f"  {'  best of each client, by clients':34}{row['best_per_client']:6.4f}")
        if "validation_selected" in row:
            at = f"({row['validation_round']})"
            lines.append(f"  {'  at best validation':34}{row['validation_selected']:6.4f} {at}")
    return lines


def next_commands(experiment: Experiment, folder: Path, arguments: Sequence[str]) -> list[tuple[str, str]]:
    """Returns pairs of a command to try next and its purpose."""
    from pfl_fast.methods import METHODS

    name = experiment.method_name
    other = "fedavg" if name != "fedavg" else "fedcp"
    defaults = method_default_arguments(experiment, other, arguments)
    compare = shlex.join([program(), "train", other, *arguments, *defaults])
    more = shlex.join([program(), "resume", str(folder), "--rounds", str(experiment.settings.rounds * 2)])
    return [
        (compare, f"compare with {METHODS[other].title}: same partition, batches and initial model"),
        *([] if experiment.method.final_phases() else [(more, "continue for more rounds")]),
        (f"{program()} methods {name}", "formulas, options and presets of the method"),
    ]


def program() -> str:
    """Returns the name of the command, with its folder if the shell does not find it: ``.venv/bin/pfl-fast``."""
    path = Path(sys.argv[0])
    return "pfl-fast" if path.name != "pfl-fast" or which("pfl-fast") else relpath(path)


def method_default_arguments(experiment: Experiment, other: str, arguments: Sequence[str]) -> list[str]:
    """Returns arguments for settings that come from the defaults of this method and differ for the ``other`` one."""
    from pfl_fast.methods import METHODS

    settings = experiment.settings
    own_defaults = experiment.method_class.defaults(settings.model, settings.dataset)
    other_defaults = METHODS[other].defaults(settings.model, settings.dataset)
    values = {name: getattr(settings, name) for name in {**own_defaults, **other_defaults} if name in SETTINGS}
    differing = {n: v for n, v in values.items() if v != other_defaults.get(n, SETTINGS[n].default)}
    flags = [argument.removeprefix("--").removeprefix("no-") for argument in arguments if argument.startswith("--")]
    given = {flag.replace("-", "_") for flag in flags}
    return as_arguments({name: value for name, value in differing.items() if name not in given})


def as_arguments(settings: Mapping[str, Any]) -> list[str]:
    """Returns settings as command-line arguments, in the order of ``--help``.

    >>> as_arguments({"shuffle": False, "rounds": "10", "local_epochs": 2})
    ['--rounds', '10', '--local-epochs', '2', '--no-shuffle']
    """
    arguments = []
    for name, value in sorted(settings.items(), key=lambda item: OPTION_ORDER.index(item[0])):
        flag = name.replace("_", "-")
        if SETTINGS[name].type.startswith("bool"):
            if value is None:
                continue
            arguments.append(f"--{flag}" if BOOLEANS[str(value).lower()] else f"--no-{flag}")
        else:
            text = ",".join(map(str, value)) if isinstance(value, (tuple, list)) else str(value)
            arguments += [f"--{flag}", "none" if value is None else text]
    return arguments
