"""``pfl-fast evaluate``: tests the clients of a run again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pfl_fast.cli.trained_run import client_option, json_option, open_run, run_argument, trust_option

if TYPE_CHECKING:
    from pfl_fast.engine.client_results import Score
    from pfl_fast.experiment import Experiment


@click.command()
@run_argument
@client_option("name or number of one client; all by default")
@click.option("--per-class", is_flag=True, help="also show the recall of each class")
@json_option
@trust_option
def evaluate(run: Path, client: str | None, per_class: bool, as_json: bool, trust: bool) -> None:
    """Test every client of the run in folder RUN on its own test samples, with its current model.

    Needs the data set, and changes nothing. Models are those of the newest checkpoint: after the last aggregation, or
    after the fine-tune of a method that ends with one.

    \b
    Examples:
      pfl-fast evaluate runs/fedcp-digits-1
      pfl-fast evaluate runs/fedcp-digits-1 --per-class
      pfl-fast evaluate runs/fedcp-digits-1 --client 3 --per-class --json
    """
    from pfl_fast.cli.messages import stand_in_warning

    experiment = open_run(run, trust, data=True, metrics=["per_class_accuracy"] if per_class else [])
    clients = range(experiment.data.clients) if client is None else [experiment.client_number(client)]
    facts = tested(experiment, list(clients), per_class)
    click.echo(json.dumps(facts, indent=2) if as_json else as_page(facts))
    for line in stand_in_warning(experiment.dataset):
        click.echo(line, err=True)


def tested(experiment: Experiment, clients: list[int], per_class: bool) -> dict[str, Any]:
    """Returns the results of a test of clients, for people and for JSON."""
    scores = {client: by_split["test"] for client, by_split in experiment.test(clients).items()}
    samples, correct = (sum(getattr(score, name) for score in scores.values()) for name in ("samples", "correct"))
    facts: dict[str, Any] = {
        **experiment.describe(),
        "rounds": experiment.state.rounds_done,
        "test_samples": samples,
        "test_accuracy": correct / samples if samples else None,
        "per_client": [client_facts(experiment, client, score) for client, score in scores.items()],
    }
    if per_class:
        facts["per_class"] = recalls(experiment, scores)
    return facts


def recalls(experiment: Experiment, scores: dict[int, Score]) -> dict[str, Any]:
    """Returns samples and recall of each class over all tested clients."""
    import numpy as np

    classes = experiment.dataset.classes
    total, right = np.zeros(len(classes), int), np.zeros(len(classes))
    for client, score in scores.items():
        labels = experiment.dataset.y[experiment.partition.test[client]][: score.samples]
        counts = np.bincount(labels, minlength=len(classes))
        own: Any = score.metrics["per_class_accuracy"]
        total += counts
        right += counts * np.array([recall or 0.0 for recall in own])
    return {
        name: {"samples": int(n), "recall": float(r / n) if n else None}
        for name, n, r in zip(classes, total, right, strict=True)
    }


def client_facts(experiment: Experiment, client: int, score: Score) -> dict[str, Any]:
    """Returns the results of one client."""
    name = experiment.client_names[client]
    return {"client": client, "client_name": name, "samples": score.samples, "correct": score.correct, **score.metrics}


def as_page(facts: dict[str, Any]) -> str:
    """Formats the results as tables of clients and of classes."""
    total = "no test samples" if facts["test_accuracy"] is None else f"{facts['test_accuracy']:.4f}"
    lines = [
        click.style(f"{facts['method']} on {facts['dataset']} ({facts['data']}), round {facts['rounds']}", bold=True),
        f"test accuracy, by samples: {total} ({facts['test_samples']:,} samples)",
        "",
    ]
    width = max(6, *(len(row["client_name"]) for row in facts["per_client"]))
    lines.append(click.style(f"{'client':{width}} {'samples':>8} {'accuracy':>9} {'loss':>8}", bold=True))
    for row in facts["per_client"]:
        accuracy, loss = (_shown(row.get(name)) for name in ("accuracy", "loss"))
        lines.append(f"{row['client_name']:{width}} {row['samples']:>8,} {accuracy:>9} {loss:>8}")
    if "per_class" in facts:
        width = max(5, *(len(name) for name in facts["per_class"]))
        lines += ["", click.style(f"{'class':{width}} {'samples':>8} {'recall':>9}", bold=True)]
        for name, row in facts["per_class"].items():
            lines.append(f"{name:{width}} {row['samples']:>8,} {_shown(row['recall']):>9}")
    return "\n".join(lines)


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
