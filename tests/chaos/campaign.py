"""One fault from start to finish: a run is disturbed, resumed, and compared with an undisturbed one."""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pfl_fast.methods import METHODS
from tests.chaos import shim
from tests.chaos.command import Calls, Command, Ended
from tests.chaos.faults import FAULTS, Fault, Undisturbed
from tests.chaos.folders import contents, damage, differences
from tests.engine.small_experiments import METHOD_SETTINGS

ROUNDS = 3
TWO = "fedper,fedavg"  # methods of a comparison
SAME, REFUSED, LOST = "same to the bit", "refused clearly", "lost"


@dataclass(frozen=True)
class Variant:
    """Settings of a run that differ between faults."""

    method: str
    executor: str
    state: str
    checkpoint_seconds: float

    @property
    def results(self) -> str:
        """Pattern of the folders of runs."""
        return "."

    def train(self, folder: Path) -> list[str]:
        """Returns the arguments that start the run in ``folder``."""
        options = [f"{name}={value}" for name, value in METHOD_SETTINGS.get(self.method, {}).items()]
        return ["train", self.method, *self.settings(folder), *[t for option in options for t in ("--set", option)]]

    def resume(self, folder: Path) -> list[str]:
        """Returns the arguments that continue the run in ``folder``."""
        return ["resume", str(folder)]

    def begun(self, folder: Path) -> bool:
        """Returns whether there is something to continue."""
        return (folder / "config.toml").exists()

    def repaired(self, name: str) -> bool:
        """Returns whether a damaged file is found when the run is continued."""
        return True

    def settings(self, folder: Path) -> list[str]:
        """Returns the arguments for all settings."""
        values = {
            "dataset": "synthetic", "samples": 72, "image-size": 4, "partition": "iid", "clients": 3,
            "model": "mlp", "model-options": "hidden=4", "rounds": ROUNDS, "batch-size": 8, "local-epochs": 1,
            "executor": self.executor, "workers": 2, "stack": 2, "state": self.state,
            "checkpoint-seconds": self.checkpoint_seconds, "out": folder,
        }  # fmt: skip
        return [text for name, value in values.items() for text in (f"--{name}", str(value))]


class Comparison(Variant):
    """A comparison of two methods, which is continued by the same command."""

    @property
    def results(self) -> str:
        """Pattern of the folders of runs."""
        return "runs/*"

    def train(self, folder: Path) -> list[str]:
        """Returns the arguments that start or continue the comparison in ``folder``."""
        return ["compare", "--methods", self.method, *self.settings(folder)]

    def resume(self, folder: Path) -> list[str]:
        """Returns the same arguments."""
        return self.train(folder)

    def begun(self, folder: Path) -> bool:
        """Returns whether there is something to continue."""
        return (folder / "comparison.toml").exists()

    def repaired(self, name: str) -> bool:
        """Returns False for files of finished runs that are only read to resume them."""
        return "/checkpoint/" not in name and "/partition/" not in name


@dataclass(frozen=True)
class Outcome:
    """Result of one fault.

    Attributes:
        result: SAME, REFUSED or LOST.
        fault: description of run and fault.
        story: what was seen.
    """

    result: str
    fault: str
    story: str


class Campaign:
    """Tries faults by number; the same seed and number give the same fault.

    Args:
        seed: seed of the faults.
        home: empty folder for runs.
        compare: disturb ``pfl-fast compare`` instead of ``pfl-fast train``.
    """

    def __init__(self, seed: str, home: Path, compare: bool = False) -> None:
        self.seed, self.home, self.compare = seed, home, compare
        self.undisturbed: dict[Variant, tuple[Undisturbed, dict[str, Any]]] = {}

    def try_fault(self, number: int) -> Outcome:
        """Tries one fault; methods take turns."""
        random_ = random.Random(f"{self.seed}:{number}")
        variant = (Comparison if self.compare else Variant)(
            TWO if self.compare else list(METHODS)[number % len(METHODS)],
            random_.choice(("sequential", "threads", "batched")),
            random_.choice(("memory", "memory", "disk")),
            random_.choice((0.0, 0.0, 60.0)),
        )
        case = Case(self, variant, random_, self.home / "run")
        try:
            kind = random_.choice((*(case.disturbed,) * 15, *(case.damaged,) * 4, *(case.at_once,) * 2))
            result, story = kind()
        finally:
            shutil.rmtree(case.folder, ignore_errors=True)
        settings = (
            f"{variant.method}, {variant.executor}, {variant.state}, checkpoints {variant.checkpoint_seconds:g} s"
        )
        return Outcome(result, f"{settings}: {case.text}", story)

    def measure(self, variant: Variant) -> tuple[Undisturbed, dict[str, Any]]:
        """Returns measurements and files of an undisturbed run."""
        if variant not in self.undisturbed:
            folder = self.home / "run"
            facts = self._count(variant)
            files = contents(folder)
            size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
            shutil.rmtree(folder)
            self.undisturbed[variant] = Undisturbed(*facts, size), files
        return self.undisturbed[variant]

    def _count(self, variant: Variant) -> tuple[dict[tuple[str, str], int], dict[int, int], int]:
        """Trains without faults; returns numbers of calls, of file operations by kinds, and of readings of clocks."""
        folder, calls = self.home / "run", Calls()

        def prepare() -> None:
            shim.fail_files(folder)
            shim.jump_clock()
            calls.start()

        def report() -> str:
            counts = [[*place, count] for place, count in calls.counts.items()]
            operations = [[kinds, shim.operations(kinds)] for kinds in {shim.ANY, *shim.FAILING.values()}]
            return "\n" + json.dumps([counts, operations, shim.readings()])

        ended = Command(variant.train(folder), prepare, report).wait()
        assert ended.code == 0, ended
        counts, operations, readings = json.loads(ended.output.splitlines()[-1])
        return {(file, name): number for file, name, number in counts}, dict(operations), readings


class Case:
    """One fault of a campaign."""

    def __init__(self, campaign: Campaign, variant: Variant, random_: random.Random, folder: Path) -> None:
        self.variant, self.random, self.folder = variant, random_, folder
        self.facts, self.expected = campaign.measure(variant)
        self.text = ""

    # kinds of cases

    def disturbed(self) -> tuple[str, str]:
        """A fault in the process of a run, sometimes another one in the process that resumes it."""
        fault = self._draw()
        ended = self._run(self.variant.train(self.folder), fault)
        if problem := self._problem(ended, fault):
            return problem
        if self.variant.begun(self.folder) and self.random.random() < 0.3:
            again = self._draw()
            if problem := self._problem(self._run(self.variant.resume(self.folder), again), again):
                return problem
        return self._finish(damaged=False)

    def damaged(self) -> tuple[str, str]:
        """A file of a run's folder changes or disappears, after the run or in the middle of it."""
        if self.random.random() < 0.6:
            self._stopped_midway()
        else:
            self._run(self.variant.train(self.folder))
        self.text += damage(self.folder, self.random)
        return self._finish(damaged=True)

    def at_once(self) -> tuple[str, str]:
        """Two processes on one run folder."""
        if self.random.random() < 0.5:
            self._stopped_midway()
            arguments = self.variant.resume(self.folder)
        else:
            arguments = self.variant.train(self.folder)
        delay = self.random.choice((0.0, 0.0, 0.02, 0.05))
        self.text += f"two processes {arguments[0]}, {delay} s apart"
        first = Command(arguments)
        time.sleep(delay)
        second = Command(self.variant.resume(self.folder) if delay else arguments)
        ends = [first.wait(), second.wait()]
        for ended in ends:
            if ended.problem:
                return LOST, f"{ended.problem}\n{ended.output}"
        if all(ended.code for ended in ends):
            return LOST, "neither of two processes went on\n" + "\n".join(ended.output for ended in ends)
        return self._finish(damaged=False)

    # steps

    def _draw(self) -> Fault:
        fault = self.random.choice(FAULTS)(self.random, self.facts, self.folder)
        self.text += ("; then " if self.text else "") + fault.text
        return fault

    def _run(self, arguments: list[str], fault: Fault | None = None) -> Ended:
        return Command(arguments, fault.arm if fault else lambda: None).wait()

    def _stopped_midway(self) -> None:
        """Interrupts a run between its first round and its last."""
        place = "engine/results/run_folder.py", "round_done"
        moment = self.random.choice([("engine/client_work.py", "__call__"), ("engine/round.py", "aggregate"), place])
        number = self.random.choice((15, 15, 9)) if moment != place or self.variant.checkpoint_seconds == 0 else 15
        count = self.random.randrange(2, max(3, self.facts.calls.get(moment, 2)))

        def act(seen: tuple[str, str], seen_count: int) -> None:
            if seen == moment and seen_count == count:
                os.kill(os.getpid(), number)

        self.text = f"stopped by signal {number} at call {count} of {moment[1]}; "
        Command(self.variant.train(self.folder), Calls(act).start).wait()

    def _problem(self, ended: Ended, fault: Fault) -> tuple[str, str] | None:
        """Returns a result if the run already shows that something is wrong."""
        if ended.problem:
            return LOST, f"{ended.problem}\n{ended.output}"
        if ended.code is not None and ended.code < 0 and -ended.code != fault.signal:
            return LOST, f"ended by signal {-ended.code}\n{ended.output}"
        if ended.code == 0 and (wrong := differences(self.expected, contents(self.folder))):
            return LOST, f"exit code 0, but {wrong}\n{ended.output}"
        return None

    def _finish(self, damaged: bool) -> tuple[str, str]:
        """Resumes the run, without faults, and compares its folder."""
        had_rounds = self._rounds() > 0
        if not self.variant.begun(self.folder) and not damaged:
            ended = self._run(self.variant.train(self.folder))
        else:
            ended = self._run([*self.variant.resume(self.folder), "--quiet"])
        if ended.problem:
            return LOST, f"resume: {ended.problem}\n{ended.output}"
        if ended.code:
            if damaged or not had_rounds:
                return REFUSED, ended.output
            return LOST, f"resume refuses what was computed\n{ended.output}"
        expected, found = self.expected, contents(self.folder)
        if damaged:
            expected, found = ({n: v for n, v in f.items() if self.variant.repaired(n)} for f in (expected, found))
        wrong = differences(expected, found)
        return (LOST, f"resumed, but {wrong}\n{ended.output}") if wrong else (SAME, "")

    def _rounds(self) -> int:
        files = self.folder.glob(f"{self.variant.results}/metrics.jsonl")
        return sum(len(file.read_bytes().splitlines()) for file in files)


def warm_up(folder: Path, compare: bool) -> None:
    """Trains in this process, so that its children find everything imported; starts no threads."""
    torch.set_num_threads(1)
    from pfl_fast.cli import main

    for method, executor in (("fedcp", "sequential"), ("partialfed-adaptive", "sequential")):
        main([*Variant(method, executor, "memory", 60).train(folder / method), "--quiet"], standalone_mode=False)
    if compare:
        main([*Comparison(TWO, "sequential", "memory", 60).train(folder / TWO), "--quiet"], standalone_mode=False)
    shutil.rmtree(folder)
