"""``pfl-fast plan``: estimates the seconds of a round on a GPU that need not be there."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from pfl_fast.cli.setting_options import SETTINGS, GroupedCommand, given, setting_options

if TYPE_CHECKING:
    from pfl_fast.engine.gpu_plan import Gpu, Plan

NAMES = ("a100", "h100", "4090")
EXAMPLES = """\b
Examples:
  pfl-fast plan fedcp --dataset mnist --gpu a100
  pfl-fast plan fedavg --dataset cifar10 --model resnet18 --precision tf32 --gpu 4090
"""


@click.command(cls=GroupedCommand, epilog=EXAMPLES)
@click.argument("method")
@setting_options(SETTINGS)
@click.option("--preset", metavar="NAME", help="named set of values of the method, such as official")
@click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="value of an option; repeatable")
@click.option("--gpu", type=click.Choice(NAMES), default="a100", show_default=True, help="GPU to estimate for")
@click.option("--json", "as_json", is_flag=True, help="print one JSON object instead of text")
def plan(method: str, preset: str | None, assignments: tuple[str, ...], gpu: str, as_json: bool, **values: Any) -> None:
    """Estimate the seconds of a round of METHOD on a GPU, which need not be there.

    Launches, bytes and FLOPs are counted without computing anything; a cost model turns them into seconds. Takes the
    settings of pfl-fast train.
    """
    from pfl_fast.cli.train_request import build_request
    from pfl_fast.engine.gpu_plan import GPUS, plan_round
    from pfl_fast.experiment import Experiment

    request = build_request(method, preset, given(values), {}, assignments, None)
    experiment = Experiment(request.method, resolved=request.resolved, log=lambda text: click.echo(text, err=True))
    s = experiment.settings
    found = plan_round(
        experiment.part_table, experiment.method, experiment.data, s, GPUS[gpu], s.precision, stack=s.stack
    )
    if as_json:
        click.echo(json.dumps({"gpu": gpu, "estimate": True, **found.as_dict()}, indent=2))
        return
    data = experiment.data
    samples = (
        f"{int(data.train_sizes.sum()):,} training samples ({experiment.dataset.source}) of {data.clients} clients"
    )
    title = f"{experiment.method.title} with {s.model} on {experiment.dataset.name}: {samples}"
    click.echo("\n".join([title, *as_lines(found, GPUS[gpu], s.precision)]))


def as_lines(found: Plan, gpu: Gpu, precision: str) -> list[str]:
    """Returns a plan as text."""
    from pfl_fast.engine.gpu_plan import LAUNCH
    from pfl_fast.engine.memory import size

    lines = [f"Estimate for one {gpu.title}; nothing was run on a GPU.", ""]
    lines += [f"stack        {found.stack} clients, about {size(found.memory)} of GPU memory"]
    for number, phase in enumerate(found.phases, start=1):
        counted = f"{phase.launches} launches, {phase.bytes / 1e6:.1f} MB, {phase.flops / 1e9:.2f} GFLOP"
        lines += [f"phase {number}      {counted} per step: {1e3 * phase.seconds:.2f} ms"]
        lines += [f"             {phase.steps} steps per round: {phase.seconds_per_round:.2f} s"]
    lines += [f"tests        {found.tests:.2f} s per round", f"aggregation  {found.aggregation:.3f} s per round"]
    lines += [click.style(f"round        about {found.seconds:.2f} s", bold=True), ""]
    lines += [
        f"Model: an operator takes the longest of {1e6 * LAUNCH:.0f} us per launch, its bytes at "
        f"{gpu.bandwidth / 1e9:,.0f} GB/s, and its",
        f"FLOPs at {gpu.peak[precision] / 1e12:g} TFLOP/s. Real kernels reach less than these peaks. Not counted:",
        "copies between host and GPU, hooks of the method, metrics, and taking batches from the data.",
    ]
    return lines
