"""Analyses of PartialFed: probabilities of the global copy by stage, and tensors that are loaded (Fig. 3)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pfl_fast.analysis.figures import COLOURS, MARKERS, bars, heatmap, plain_axes
from pfl_fast.analysis.result import Result
from pfl_fast.analysis.run import AnalysisOptions, FinishedRun
from pfl_fast.methods.partialfed_adaptive import PartialFedAdaptive


def stage_of(group: str) -> str:
    """Returns the stage of a group of tensors: s1 (with the stem) to s4 and fc; other models: the layer.

    >>> [stage_of(name) for name in ("extractor.layer3.0.bn1", "stem", "extractor.conv1", "s2.1", "fc")]
    ['s3', 's1', 'conv1', 's2', 'fc']
    """
    if found := re.search(r"layer(\d)", group) or re.match(r"s(\d)", group):
        return f"s{found[1]}"
    return {"stem": "s1", "head": "fc"}.get(group, group.removeprefix("extractor."))


def stages_of(groups: Sequence[str]) -> dict[str, list[int]]:
    """Returns the numbers of the groups of each stage; in a ResNet, stem layers belong to the first stage."""
    resnet = any(re.search(r"layer\d", group) for group in groups)
    stages: dict[str, list[int]] = {}
    for number, group in enumerate(groups):
        stage = stage_of(group)
        stages.setdefault("s1" if resnet and not re.fullmatch(r"s\d|fc", stage) else stage, []).append(number)
    return stages


def probabilities(run: FinishedRun, groups: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Returns rounds ``[R]`` and the probability of the global copy ``[R, groups, clients]``."""
    found = [run.recorded(f"alpha.{group}") for group in groups]
    return found[0][0], np.stack([values for _, values in found], 1)


def strategy(run: FinishedRun, options: AnalysisOptions) -> Result:  # noqa: ARG001
    """Returns the probability that a client loads the global copy, by round and stage (Fig. 3)."""
    assert isinstance(run.method, PartialFedAdaptive)
    rounds, alpha = probabilities(run, run.method.groups)
    stages = stages_of(run.method.groups)
    means = {stage: alpha[:, numbers].mean(1) for stage, numbers in stages.items()}  # [R, clients]
    rows = [
        [number, name, *(means[stage][place, client] for stage in stages)]
        for client, name in enumerate(run.client_names)
        for place, number in enumerate(rounds)
    ]

    def draw(figure: Any) -> None:
        columns = min(4, run.clients)
        grid = figure.subplots(-(-run.clients // columns), columns, sharex=True, sharey=True, squeeze=False)
        for client, name in enumerate(run.client_names):
            axes = plain_axes(grid.flat[client], "communication round", "", name)
            for number, stage in enumerate(stages):
                colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
                axes.plot(rounds, means[stage][:, client], color=colour, marker=marker, markersize=3, label=stage)
            axes.axhline(0.5, color="#999999", linewidth=0.8, linestyle=":")
        for row in grid:
            row[0].set_ylabel("probability of global")
        for axes in list(grid.flat)[run.clients :]:
            axes.set_visible(False)
        grid.flat[0].legend(frameon=False, fontsize=7)

    return Result(
        "Strategy by stage",
        "Probability alpha of loading the global copy, mean over the groups of tensors of a stage, recorded in local "
        "training of the evaluated rounds; above 0.5 the global copy is likelier (PartialFed, Fig. 3).",
        ["round", run.client_label, *stages],
        rows,
        draw,
        (2.3 * min(4, run.clients) + 0.6, 2.4 * -(-run.clients // 4) + 0.4),
    )


def loaded_tensors(run: FinishedRun, options: AnalysisOptions) -> Result:  # noqa: ARG001
    """Returns which tensors clients load from the global model: fixed, or by the likelier copy at the end."""
    table = run.experiment.part_table
    if isinstance(run.method, PartialFedAdaptive):
        tensors, groups = [run.tensors(client) for client in range(run.clients)], run.method.groups
        alpha = torch.stack([own["policy.logits"].softmax(1)[:, 1] for own in tensors], 1).double().numpy()
        return Result(
            "Groups of tensors and their probability",
            "Probability of loading the global copy of each group of tensors at the end of the run; above 0.5 the "
            "global copy is likelier.",
            ["group", "stage", *(f"client {name}" for name in run.client_names)],
            [[g, stage_of(g), *own] for g, own in zip(groups, alpha, strict=True)],
            lambda figure: heatmap(
                figure, alpha.T, "group of tensors, from input to output", run.client_label, "probability of global",
                None, None, run.client_names,
                columns=[g.removeprefix("extractor.") for g in groups] if len(groups) <= 12 else (),
            ),
            (7.4, 0.3 * run.clients + 1.8),
        )  # fmt: skip
    specs = [s for s in table.model_specs if s.parameter]
    rows = [[s.key, "yes" if s.receive_from else "no", s.value.numel()] for s in specs]
    stages = stages_of([s.key.rsplit(".", 1)[0] for s in specs])
    shares = [_share([specs[n].value.numel() for n in numbers], [bool(specs[n].receive_from) for n in numbers])
              for numbers in stages.values()]  # fmt: skip
    return Result(
        "Tensors loaded from the global model",
        f"Tensors that every client loads with strategy {run.option('strategy')}; figure: share of the parameters of "
        "each stage.",
        ["tensor", "loaded", "parameters"],
        rows,
        lambda figure: bars(figure, list(stages), {"loaded": shares}, "stage", "share of parameters loaded"),
    )


def _share(sizes: Sequence[int], flags: Sequence[bool]) -> float:
    return sum(size for size, flag in zip(sizes, flags, strict=True) if flag) / sum(sizes)
