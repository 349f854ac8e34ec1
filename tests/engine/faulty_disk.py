"""Runs on a disk that fails, or in a process that is killed, at one chosen system call of the run folder.

``python -m tests.engine.faulty_disk FOLDER CALL...`` trains one run for each number of a call, in FOLDER/CALL, and
kills the process that trains it at this call.
"""

import csv
import itertools
import os
import re
import signal
import sys
from pathlib import Path

import torch

from pfl_fast import atomic
from pfl_fast.engine.state import checkpoint
from pfl_fast.experiment import Experiment
from tests.engine import small_experiments as small

TIMES = re.compile(rb'"(seconds|samples_per_second|seconds_per_round|digest)": [^,}]*|"seconds_by_part": \{[^}]*\}')


def begin(folder, **settings):
    """A run of three rounds with a checkpoint after each."""
    values = {"rounds": 3, "checkpoint_seconds": 0, "log": lambda _: None, "method": "fedper", **settings}
    values = {"partition": "iid", "clients": 3, "batch_size": 4, "dtype": "float64", "lr": 0.1, **values}
    return Experiment(dataset=small.features(20), model=small.plain(), executor="sequential", out=folder, **values)


def resume(folder, log=lambda _: None, **changes):
    """Resumes a run of :func:`begin`."""
    return Experiment.resume(folder, log=log, dataset=small.features(20), model=small.plain(), **changes)


def train(experiment):
    """Trains all rounds and closes the experiment, whatever happens."""
    try:
        experiment.run()
    finally:
        experiment.close()


def contents(folder):
    """Contents of all files of a run without times; of checkpoints, the tensors of the newest."""
    files = [*folder.glob("*.*"), *folder.glob("partition/*")]
    found = {str(file.relative_to(folder)): without_times(file) for file in files}
    newest = max(folder.glob("checkpoint/round-*.safetensors"))
    return {**found, newest.name: newest.read_bytes()}


def without_times(file):
    """Contents of a file: rows of CSV without their seconds, JSON without its times, the bytes of others."""
    content = file.read_bytes()
    if file.suffix != ".csv":
        return TIMES.sub(b"", content)
    rows = list(csv.DictReader(content.decode().splitlines()))
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


class FaultyDisk:
    """Stands in for ``os`` in :mod:`pfl_fast.atomic`, and for ``save_file`` of checkpoints.

    Args:
        call: number of the call at which ``fail`` is called, from 1.
        fail: raises or ends the process.
        for_good: all later calls fail, too.
    """

    def __init__(self, call, fail, for_good=False):
        self.call, self.fail, self.for_good, self.done = call, fail, for_good, 0
        self.save_file = checkpoint.save_file

    def __getattr__(self, name):
        return getattr(os, name)

    def counted(self):
        self.done += 1
        return self.done == self.call or (self.for_good and self.done > self.call)

    def open(self, *arguments):
        if self.counted():
            self.fail()
        return os.open(*arguments)

    def write(self, descriptor, data):
        if self.counted():
            os.write(descriptor, bytes(data)[: len(data) // 2])
            self.fail()
        return os.write(descriptor, data)

    def fsync(self, descriptor):
        if self.counted():
            self.fail()
        os.fsync(descriptor)

    def replace(self, *arguments):
        if self.counted():
            self.fail()
        os.replace(*arguments)  # noqa: PTH105

    def save(self, tensors, file):
        if self.counted():
            file.write_bytes(b"as much as fitted")
            self.fail()
        self.save_file(tensors, file)


def killed_at(folder, call):
    """Trains in a child process that is killed at a call; returns whether there was such a call."""
    child = os.fork()
    if not child:
        disk = FaultyDisk(call, lambda: os.kill(os.getpid(), signal.SIGKILL))
        atomic.os, checkpoint.save_file = disk, disk.save
        train(begin(folder))
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    torch.set_num_threads(1)
    train(begin(None))  # loads modules and operators, which the children need not do again
    for number in itertools.takewhile(lambda n: killed_at(Path(sys.argv[1], n), int(n)), sys.argv[2:]):
        print(number)
