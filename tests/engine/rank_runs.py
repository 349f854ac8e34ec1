"""Starts Python functions in several processes, the ranks of a run, as torchrun would."""

import os
import signal
import socket
import subprocess
import sys

import torch

from pfl_fast.engine.ranks import RankFailed, current_ranks
from pfl_fast.engine.results.listeners import Listener
from pfl_fast.engine.stopping import Interrupted
from pfl_fast.errors import PflFastError

from . import small_experiments as small

MODELS = {"fedbn": small.with_batch_norm}  # its statistics and weights are personal, the counter is an integer


def environment(rank, size, port):
    """Environment variables that torchrun sets."""
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": port}
    fixed = {"MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1", "PFL_FAST_RANK_TIMEOUT": "60"}
    return {**os.environ, **fixed, **{name: str(value) for name, value in names.items()}}


def free_port():
    """A TCP port that nobody uses."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def run_ranks(size, function, *arguments, timeout=120):
    """Calls a function of this module in ``size`` processes; returns their outputs, exit codes last."""
    port = free_port()
    command = [sys.executable, "-m", __name__, function, *map(str, arguments)]
    processes = [
        subprocess.Popen(command, env=environment(rank, size, port), stdout=-1, stderr=subprocess.STDOUT, text=True)
        for rank in range(size)
    ]
    try:
        outputs = [process.communicate(timeout=timeout)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return outputs, [process.returncode for process in processes]


def results_of(methods):
    """Trains each method for two rounds with half the clients; yields its name, state and records."""
    for method in methods:
        model = MODELS.get(method, small.plain)()
        settings = {"join_ratio": 0.5, "validation": 2, "sizes": (11, 4, 7, 3, 9, 6), "model": model}
        with small.trained(method, log=lambda _: None, **settings) as running:
            if current_ranks().rank == 0:
                yield method, small.state_of(running), small.untimed_records(running)


def train_methods(file, *methods):
    """Writes the results of :func:`results_of`."""
    results = {method: (state, records) for method, state, records in results_of(methods)}
    if current_ranks().rank == 0:
        torch.save(results, file)


class StopAfter(Listener):
    """Asks a run to stop after a client of a round has trained on this rank."""

    def __init__(self, running, round):
        self.running, self.round = running, round

    def client_done(self, round, done, total, report):
        if round == self.round:
            self.running.round.executor.stop.set()


def begin(folder):
    """Starts a run and stops it on rank 1 in round 2."""
    _stop(small.image_experiment("fedcp", out=folder, dtype="float64", rounds=4, checkpoint_seconds=0), 2)


def go_on(folder):
    """Resumes the run and stops it on rank 1 in round 3."""
    _stop(small.resume_image_experiment(folder), 3)


def _stop(running, round):
    if current_ranks().rank == 1:
        running.listeners.append(StopAfter(running, round))
    try:
        running.run()
    except Interrupted:
        done = running.round.state
        print("interrupted in round", done.rounds_done + 1, "after", len(done.unfinished.reports), "clients")
    running.close()


class FailIn(Listener):
    """Raises on rank 1 when a client has trained."""

    def client_done(self, round, done, total, report):
        raise PflFastError("no more")


def fail(folder):
    """Fails on rank 1 with an error that is explained to the user."""
    running = small.image_experiment("fedavg", out=folder)
    if current_ranks().rank == 1:
        running.listeners.append(FailIn())
    try:
        running.run()
    except PflFastError as error:
        print(f"{type(error).__name__}: {error}")


PHASES = ("train_own", "on_client", "aggregate", "mix", "test_clients", "complete_state")  # functions of a round


def die_in(folder, phase, victim):
    """Kills the rank ``victim`` at the second call of a function of the round."""
    running = small.image_experiment("fedfomo", out=folder, dtype="float64", checkpoint_seconds=0)
    call, calls = getattr(running.round, phase), []

    def last_call(*arguments):
        calls.append(arguments)
        if len(calls) == 2 and current_ranks().rank == int(victim):
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*arguments)

    setattr(running.round, phase, last_call)
    try:
        running.run()
    except RankFailed as error:
        print(error)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
