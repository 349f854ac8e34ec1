"""What a run says before and after: what is run, what came out, what to try next."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pfl_fast.cli.progress import ACCURACIES, duration
from pfl_fast.cli.setting_options import PLACES, SETTINGS
from pfl_fast.data.dataset import STAND_IN

if TYPE_CHECKING:
    from pfl_fast.experiment import Experiment

BYTES = {"float32": 4, "float64": 8}


def banner(experiment: Experiment, folder: Path) -> str:
    """What is about to be run."""
    facts = {
        "method": f"{experiment.kind.title}: {experiment.kind.summary}",
        "data": data_line(experiment),
        "partition": partition_line(experiment),
        "model": model_line(experiment),
        "rounds": rounds_line(experiment),
        "runs as": executor_line(experiment),
        "memory": str(experiment.memory()),
        "results": str(folder),
    }
    lines = [f"{click.style(f'{name:10}', bold=True)}{text}" for name, text in facts.items()]
    return "\n".join([*lines, *stand_in_warning(experiment)])


def data_line(experiment: Experiment) -> str:
    """What it is, whether it is real, how much there is."""
    dataset = experiment.dataset
    shape = "x".join(map(str, dataset.input_shape))
    return f"{dataset.name} ({dataset.source}): {len(dataset):,} samples of {shape}, {len(dataset.classes)} classes"


def partition_line(experiment: Experiment) -> str:
    """The rule, what clients get, and the hash by which equal splits are known."""
    partition, sizes = experiment.partition, experiment.data.train_sizes
    share = f"{experiment.data.clients} clients with {sizes.min():,} to {sizes.max():,} training samples"
    return f"{partition.kind}, {share}, hash {partition.hash[:12]}"


def model_line(experiment: Experiment) -> str:
    """What a client trains and sends."""
    part_table = experiment.part_table
    trained = sum(e.value.numel() for e in part_table.specs if e.parameter and part_table.parts[e.part].trained)
    uploaded = sum(e.value.numel() for e in part_table.uploaded)
    return f"{experiment.settings.model}: a client trains {trained:,} parameters and uploads {uploaded:,}"


def executor_line(experiment: Experiment) -> str:
    """Where clients run, and how."""
    executor = experiment.server.executor
    devices = ", ".join(dict.fromkeys(str(worker.device) for worker in executor.workers))
    side_by_side = f", {len(executor.workers)} clients at a time" if executor.kind == "threads" else ""
    return f"{executor.kind} on {devices}{side_by_side}"


def rounds_line(experiment: Experiment) -> str:
    """How many, of what, from where."""
    s, done = experiment.settings, experiment.server.rounds_done
    begin = "" if not done else f" from round {done + 1}" if done < experiment.server.last_round else ", all done"
    return (
        f"{s.rounds}{begin}, {s.join_ratio:.0%} of the clients in each, local epochs {s.local_epochs}, "
        f"batch size {s.batch_size}, lr {s.lr:g}, seed {s.seed}"
    )


def stand_in_warning(experiment: Experiment) -> list[str]:
    """For data that is not what it is called."""
    if experiment.dataset.source != STAND_IN:
        return []
    name = experiment.dataset.name
    text = (
        f"SYNTHETIC STAND-IN for {name}: generated data, so accuracies say nothing about the real data set.\n"
        f"  pfl-fast data get {name}   fetches it;   --real-data-only   refuses to train without it"
    )
    return [click.style(text, fg="yellow", bold=True)]


def quiet_line(experiment: Experiment, folder: Path) -> str:
    """The whole outcome in one line."""
    summary = experiment.summary()
    scores = [
        f"{t} {summary[n]['last']:.4f} (best {summary[n]['best']:.4f})" for n, t in ACCURACIES.items() if n in summary
    ]
    data = f"{experiment.dataset.name} ({experiment.dataset.source})"
    return f"{experiment.method_name} on {data}, {summary['rounds']} rounds: {', '.join(scores)}; {folder}"


def outcome(experiment: Experiment, folder: Path, seconds: float, command: Sequence[str]) -> str:
    """One screen: accuracies, pace, traffic, where results are, what to try next.

    Args:
        experiment: after its rounds.
        folder: of the run.
        seconds: that this command took.
        command: words to repeat the run with another method or seed, settings only.
    """
    summary = experiment.summary()
    data = f"{experiment.dataset.name} ({experiment.dataset.source})"
    title = f"{experiment.kind.title} on {data}: {summary['rounds']} rounds, {duration(seconds)}"
    lines = [click.style(title, bold=True), *accuracy_table(summary)]
    if "seconds_per_round" in summary:
        width = BYTES[experiment.settings.dtype]
        up, down = (summary[name] * width / 1e6 for name in ("uploaded_values", "downloaded_values"))
        lines.append(
            f"{summary['seconds_per_round']:.2f} s/round, {summary['samples_per_second']:,.0f} samples/s trained; "
            f"{up:,.1f} MB uploaded, {down:,.1f} MB downloaded by clients"
        )
    lines.append(f"results in {folder}: metrics.jsonl, clients.csv, summary.json, config.toml, checkpoint/")
    lines += stand_in_warning(experiment)
    lines.append(click.style("try next", bold=True))
    lines += [f"  {words}\n      {why}" for words, why in next_commands(experiment, folder, command)]
    return "\n".join(lines)


def accuracy_table(summary: Mapping[str, Any]) -> list[str]:
    """Best, last and mean of the last five, after aggregation, after local training, of the server's model."""
    titles = {**ACCURACIES, "test_accuracy_global": "global model"}
    rows = {title: summary[name] for name, title in titles.items() if name in summary}
    lines = [f"  {'test accuracy':22}{'best':>8} {'(round)':9}{'last':>8}{'last 5':>10}"]
    for title, row in rows.items():
        at = f"({row['best_round']})"
        lines.append(f"  {title:22}{row['best']:8.4f} {at:9}{row['last']:8.4f}{row['last5']:10.4f}")
        if "best_per_client" in row:
            lines.append(f"  {'  each its own best':22}{row['best_per_client']:8.4f}")
        if "validation_selected" in row:
            at = f"({row['validation_round']})"
            lines.append(f"  {'  by validation':22}{row['validation_selected']:8.4f} {at}")
    return lines


def next_commands(experiment: Experiment, folder: Path, command: Sequence[str]) -> list[tuple[str, str]]:
    """Commands that make sense after this one, and why."""
    name = experiment.method_name
    other = "fedavg" if name != "fedavg" else "fedcp"
    compare = shlex.join(["pfl-fast", "train", other, *command, *brought_along(experiment, other, command)])
    more = shlex.join(["pfl-fast", "resume", str(folder), "--rounds", str(experiment.settings.rounds * 2)])
    return [
        (compare, f"{other} on the same split, with the same batches and initial model"),
        *([] if experiment.method.final_phases() else [(more, "go on from here")]),
        (f"pfl-fast methods {name}", "the method's formulas, options and presets"),
    ]


def brought_along(experiment: Experiment, other: str, command: Sequence[str]) -> list[str]:
    """Words for settings that nobody said, but the method has its own values of, and another method would not."""
    from pfl_fast.methods import METHODS

    settings = experiment.settings
    here = (settings.model, settings.dataset)
    theirs = METHODS[other].defaults(*here)
    names = [name for name in {**experiment.kind.defaults(*here), **theirs} if name in SETTINGS]
    values = {name: getattr(settings, name) for name in names}
    differing = {n: v for n, v in values.items() if v != theirs.get(n, SETTINGS[n].default)}
    said = {word.removeprefix("--").removeprefix("no-").replace("-", "_") for word in command if word.startswith("--")}
    return as_words({name: value for name, value in differing.items() if name not in said})


def as_words(settings: Mapping[str, Any]) -> list[str]:
    """Settings as they are written on the command line, the common ones first.

    >>> as_words({"shuffle": False, "rounds": "10", "local_epochs": 2})
    ['--rounds', '10', '--local-epochs', '2', '--no-shuffle']
    """
    words = []
    for name, value in sorted(settings.items(), key=lambda item: PLACES.index(item[0])):
        flag = name.replace("_", "-")
        if SETTINGS[name].type == "bool":
            words.append(f"--{flag}" if str(value).lower() in {"true", "yes", "on", "1"} else f"--no-{flag}")
        else:
            text = ",".join(map(str, value)) if isinstance(value, (tuple, list)) else str(value)
            words += [f"--{flag}", "none" if value is None else text]
    return words
