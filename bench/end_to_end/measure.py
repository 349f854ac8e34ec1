"""Measures both sides in turn: seconds per step of a round, ratios, memory, FLOPs and operators per step."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from time import perf_counter, process_time

from torch.utils.flop_counter import FlopCounterMode

from bench.end_to_end.cases import Case, experiment_of
from bench.end_to_end.to_yardstick import client_of, to_yardstick
from bench.footprint import footprint
from bench.growth import memory
from bench.machine import kernels
from bench.yardstick import Server
from pfl_fast import Experiment
from pfl_fast.data.synthetic import synthetic
from pfl_fast.engine.worker import Worker

YARDSTICK, OURS = SIDES = ("yardstick", "ours")
PARTS = ("data", "local", "aggregate", "distribute", "test_aggregated")


def spread(values: Sequence[float]) -> list[float]:
    """Returns median, 20 % and 80 % quantiles."""
    cuts = statistics.quantiles(values, n=5, method="inclusive") if len(values) > 1 else [values[0]] * 4
    return [statistics.median(values), cuts[0], cuts[-1]]


def compare(case: Case, repetitions: int, folder: Path | None) -> dict:
    """Runs rounds of both sides in turn from the same initial model on the same samples; the first is a warm-up."""
    experiment = experiment_of(case, folder)
    server = to_yardstick(experiment)
    flops = flops_per_sample(case, experiment) * int(experiment.data.train_sizes.sum())
    rounds, executor = experiment.rounds(), experiment.round.executor.name
    records: dict[str, list[dict]] = {side: [] for side in SIDES}
    for _ in range(1 + repetitions):
        records[YARDSTICK].append(timed(server.round))
        records[OURS].append(timed(lambda: next(rounds)))
    rounds.close()
    experiment.close()
    last = {side: values[-1] for side, values in records.items()}
    counted = {side: values[1:] for side, values in records.items()}
    wall = {side: [record["wall"] for record in values] for side, values in counted.items()}
    parts = {side: median_parts(values) for side, values in counted.items()}
    samples = int(experiment.data.train_sizes.sum())
    return {
        "data": experiment.dataset.source,
        "clients": experiment.data.clients,
        "samples": samples,
        "most": case.most,
        "tests": int(experiment.data.test_sizes.sum()),
        "parameters": sum(value.numel() for value in server.averages),
        "executor": executor,
        "rounds": 1 + repetitions,
        "seconds": {side: spread(values) for side, values in wall.items()},
        "ratio": spread([a / b for a, b in zip(wall[YARDSTICK], wall[OURS], strict=True)]),
        "goal": case.goal if kernels() == "avx512" else case.avx2_goal or case.goal,
        # If the yardstick, which splits every step over all cores, used fewer, other processes used the machine.
        "cores": {side: statistics.median(record["cores"] for record in counted[side]) for side in SIDES},
        "parts": parts,
        "samples_per_second": {side: samples / training(parts[side]) for side in SIDES},
        "gflops": {side: flops / training(parts[side]) / 1e9 for side in SIDES},
        "accuracy": {YARDSTICK: last[YARDSTICK]["accuracy"], OURS: last[OURS]["test_accuracy_after_agg"]},
        "auc": {YARDSTICK: last[YARDSTICK]["auc"], OURS: last[OURS]["test_auc_after_agg"]},
    }


def workers(case: Case, repetitions: int, folder: Path | None) -> dict:
    """Returns the seconds of rounds with one worker and with two, in turn, and the ratio."""
    experiments = [experiment_of(case, folder, executor="threads", workers=count) for count in (1, 2)]
    rounds = [experiment.rounds() for experiment in experiments]
    wall = [[timed(lambda: next(own))["wall"] for own in rounds] for _ in range(1 + repetitions)][1:]  # noqa: B023
    for own, experiment in zip(rounds, experiments, strict=True):
        own.close()
        experiment.close()
    one, two = zip(*wall, strict=True)
    return {"one": spread(one), "two": spread(two), "ratio": spread([a / b for a, b in wall])}


def timed(run: Callable[[], dict]) -> dict:
    """Returns the record of a round with its wall time in seconds and the average number of cores used."""
    begin, begin_cpu = perf_counter(), process_time()
    record = run()
    wall = perf_counter() - begin
    return {**record, "wall": wall, "cores": (process_time() - begin_cpu) / wall}


def median_parts(records: Sequence[dict]) -> dict[str, float]:
    return {part: statistics.median(record["seconds_by_part"][part] for record in records) for part in PARTS}


def training(parts: dict[str, float]) -> float:
    return parts["data"] + parts["local"]


def flops_per_sample(case: Case, experiment: Experiment) -> float:
    """Returns FLOPs of matrix products and convolutions in the yardstick's forward and backward, per sample."""
    client = client_of(experiment, 0)
    x, y = experiment.data.take(experiment.data.indices("train", 0)[: case.batch_size])
    with FlopCounterMode(display=False) as counter:
        client.fit([(x.contiguous(), y)], lr=0.0, momentum=0.0)
    return counter.get_total_flops() / len(y)


# Memory


def peak_memory(case: Case, quick: bool, folder: Path | None) -> dict[str, float]:
    """Returns the peak MiB of one round of each side, in a separate process, without the program itself."""
    options = [*(["--quick"] if quick else []), *(["--data-dir", str(folder)] if folder else [])]
    peaks = {}
    for side in SIDES:
        words = [sys.executable, "-m", "bench.end_to_end", "--peak", side, "--cases", case.name, *options]
        peaks[side] = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
    return peaks


def one_round(case: Case, side: str, folder: Path | None) -> float:
    """Returns the peak MiB of one round of one side, above the memory before it."""
    before = memory("VmRSS")
    experiment = experiment_of(case, folder)
    if side == OURS:
        next(experiment.rounds())
    else:
        server = to_yardstick(experiment)
        del experiment
        server.round()
    return memory("VmHWM") - before


# Operators

STEPS = (20, 40)  # values cached over many batches count in proportion
FEW = 2


def dispatches(case: Case) -> dict[str, float]:
    """Returns kernel launches per client and step, as the difference between runs with more and fewer steps."""
    few, many = (kernels_by_steps(case, steps) for steps in STEPS)
    return {name: (many[name] - few[name]) / (STEPS[1] - STEPS[0]) for name in few}


def kernels_by_steps(case: Case, steps: int) -> dict[str, float]:
    """Returns operators per client in local training with ``steps`` batches."""
    # Only in a stack do operators per client depend on the number of clients.
    counts = {YARDSTICK: footprint(to_yardstick(equal_clients(case, FEW, steps)).train)[1] / FEW}
    for executor in ("sequential", "threads", "batched"):
        clients = case.clients if executor == "batched" else FEW
        experiment = equal_clients(case, clients, steps, executor=executor)
        counts[executor] = local_kernels(experiment) / clients
        experiment.close()
    return counts


def equal_clients(case: Case, clients: int, steps: int, **settings: object) -> Experiment:
    """Returns an experiment whose clients have ``steps`` full batches of generated images each."""
    count = clients * steps * case.batch_size
    return Experiment(
        case.method,
        dataset=synthetic(count + clients, (1, 28, 28), 10),
        partition="iid",
        test_fraction=clients / (count + clients),
        clients=clients,
        model=case.model,
        model_options=case.model_options,
        batch_size=case.batch_size,
        rounds=1,
        log=lambda _: None,
        **settings,
    )


def local_kernels(experiment: Experiment) -> int:
    rounds = experiment.round
    return footprint(lambda: rounds.train(rounds.cohort(1), 1))[1]


# The exchange

CLIENTS, CLASSES, SHAPE = 20, 200, (3, 64, 64)  # the 4-layer CNN for Tiny-ImageNet: 5.7 million parameters


def exchange(repetitions: int) -> dict:
    """Measures average and broadcast of 20 clients with 5.7 million parameters each, in rounds of one small batch.

    The yardstick averages into the server's tensors and clones them into every client. The library averages the uploads
    and lets all clients read the result in place. Tensors that a client cannot read in place are copied before
    training: ``load`` is the time of these copies, which a round counts as local training and which count as broadcast
    here. The other tensors are written to the client's memory by its first step. Copies of uploads, which the yardstick
    does not need, count as local training; whole rounds include them. ``read`` is the time to read the uploads once, a
    lower bound of any average.
    """
    experiment = Experiment(
        "fedavg",
        dataset=synthetic(CLIENTS * 4, SHAPE, CLASSES),
        partition="iid",
        clients=CLIENTS,
        model="cnn",
        rounds=1 + repetitions,
        eval_at="after_agg",
        log=lambda _: None,
    )
    server = to_yardstick(experiment)
    taken: dict[str, list[float]] = {YARDSTICK: [], OURS: [], "load": [], "read": []}
    for record in islice(experiment.rounds(), 1 + repetitions):
        load = seconds_of_loading(experiment)
        taken[YARDSTICK].append(exchange_seconds(server))
        parts = record["seconds_by_part"]
        taken["load"].append(load)
        taken["read"].append(seconds_of_reading(experiment))
        taken[OURS].append(parts["aggregate"] + parts["distribute"] + load)
    experiment.close()
    taken = {name: values[1:] for name, values in taken.items()}
    uploaded = CLIENTS * sum(value.nbytes for value in server.averages)
    return {
        "parameters": sum(value.numel() for value in server.averages),
        "seconds": {name: spread(values) for name, values in taken.items()},
        "ratio": spread([a / b for a, b in zip(taken[YARDSTICK], taken[OURS], strict=True)]),
        "goal": 8.0,
        # Every upload is read at least once.
        "gbs": {name: uploaded / statistics.median(taken[name]) / 1e9 for name in (*SIDES, "read")},
    }


def exchange_seconds(server: Server) -> float:
    server.train()
    begin = perf_counter()
    server.aggregate()
    server.send()
    return perf_counter() - begin


def seconds_of_loading(experiment: Experiment) -> float:
    """Returns the seconds to copy received tensors to where clients train, as the executor does."""
    rounds = experiment.round
    phases, settings = rounds.method.phases(1), rounds.step_settings(1)

    def load(worker: Worker, client: int) -> None:
        worker.single.load([views[client]], phases, settings)

    begin = perf_counter()
    views = {
        client: rounds.state.clients.view(client, rounds.state.server) for client in range(experiment.data.clients)
    }
    for _ in rounds.executor.run(list(views), load):
        pass
    return perf_counter() - begin


def seconds_of_reading(experiment: Experiment) -> float:
    """Returns the seconds to read all uploads once, by computing their maxima."""
    begin = perf_counter()
    for block in experiment.round.upload_memory.values():
        block.amax()
    return perf_counter() - begin
