"""The work of one worker for one unit of clients, called by executors.

Work reads the server's tensors, writes to the clients' state and to the uploads of the round, and returns results. It
never calls back into :mod:`pfl_fast.engine.round`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

from torch import Tensor

from pfl_fast.engine.client_results import LocalReport, Score
from pfl_fast.engine.local.optimizer import StepSettings
from pfl_fast.engine.local.runner import Runner
from pfl_fast.engine.results.scores import PendingScore, read_scores_by_split
from pfl_fast.engine.state.run_state import RunState
from pfl_fast.engine.worker import TestSettings, Worker
from pfl_fast.errors import PflFastError
from pfl_fast.methods.base import Method, Phase, Tensors
from pfl_fast.transfer import to_device, write_rows

Observer = Callable[[int, int, Tensors, Tensors], None]  # of round, client, tensors, upload


class NotFinite(PflFastError):  # noqa: N818
    """A client's loss or parameters became NaN or infinite, and the policy is to stop."""

    def __init__(self, round: int, report: LocalReport) -> None:
        super().__init__(
            f"round {round}, client {report.client}: {report.problem}. A smaller lr usually helps; "
            'on_nan="skip" leaves such a client out of the round, on_nan="report" goes on regardless'
        )


@dataclass(frozen=True)
class ClientTest:
    """Tests clients with their current tensors, after the method's phases before a test.

    ``at`` is ``"after_local"``, ``"after_agg"`` or ``"final_round"``.
    """

    method: Method
    state: RunState
    splits: Sequence[str]
    settings: TestSettings
    step: StepSettings
    at: str = "after_agg"

    def __call__(self, worker: Worker, unit: list[int]) -> list[dict[str, PendingScore]]:
        """Returns the scores of each client by split, still on the device."""
        server = worker.received(self.state.server)
        views = [self.state.clients.view(client, server, receives=False) for client in unit]
        return self.pending(worker, unit, views)

    def pending(
        self, worker: Worker, unit: list[int], views: Sequence[Tensors], tensors: Tensors | None = None
    ) -> list[dict[str, PendingScore]]:
        """Returns the scores of clients with the tensors ``views``, which ``tensors`` may hold as one unit."""
        runner, phases = worker.runner, self.method.before_test(self.settings.round + 1, self.at)
        if phases:
            tensors = worker.adapt(runner, unit, views, phases, self.step)
        elif tensors is None:
            tensors = runner.gather(views)
        by_split = {split: worker.test(runner, unit, tensors, split, self.settings) for split in self.splits}
        return [{split: scores[row] for split, scores in by_split.items()} for row in range(len(unit))]


@dataclass(frozen=True)
class ClientWork:
    """Everything a client does in a round: receive, train, test, upload, store.

    Attributes:
        test: test after local training, or None.
        upload_rows: row of each uploading client in the blocks of uploads.
        uploads_in_place: True if the only unit is a stack of the uploading clients, in the order of the blocks, on the
            device of the server: its tensors are the uploads, until the next training overwrites them. Blocks are
            allocated if the unit is trained in smaller stacks after all.
        on_nan: policy for values that are not finite: ``"stop"``, ``"skip"`` or ``"report"``.
        observe: called with each trained client, its tensors and its upload, which are valid during the call; or None.
    """

    method: Method
    state: RunState
    round: int
    phases: Sequence[Phase]
    step: StepSettings
    test: ClientTest | None
    upload_rows: dict[int, int]
    uploads_in_place: bool
    on_nan: str
    observe: Observer | None = None

    def __call__(self, worker: Worker, unit: list[int]) -> list[LocalReport]:
        """Trains and tests the clients of a unit; writes their uploads, state, reports and scores."""
        runner, begin = worker.runner, perf_counter()
        # 1. receive
        server = worker.received(self.state.server)
        views = [self.state.clients.view(client, server, round=self.round) for client in unit]
        tensors, write_buffers = runner.load(views, self.phases, self.step)
        # 2. train
        reports = worker.trainer.train(unit, tensors, self.phases, self.step, write_buffers)
        for report in reports:
            report.seconds = (perf_counter() - begin) / len(unit)
        trained = {report.client: runner.row(tensors, row) for row, report in enumerate(reports)}
        failed = [report for report in reports if report.problem and self.on_nan != "report"]
        good = [report for report in reports if report not in failed]
        # 3. test
        scores = self._test(worker, good, trained, None if failed else tensors)
        # 4. upload   5. store
        rows = [row for row, report in enumerate(reports) if report not in failed]
        if rows:
            uploaded = self._upload(runner, unit, rows, tensors)
            stored = {name: _rows(values, rows) for name, values in runner.as_stack(tensors).items()}
            self.state.clients.write_stack([unit[row] for row in rows], stored)
            if self.observe:
                for row in rows:
                    sent = uploaded if unit[row] in self.upload_rows else {}
                    own = {name: values[row] for name, values in sent.items()}
                    self.observe(self.round, unit[row], runner.row(tensors, row), own)
        for report in good:
            self._mark_trained(report, scores.get(report.client, {}))
        if failed and self.on_nan == "stop":
            raise NotFinite(self.round, failed[0])
        for report in failed:
            self._mark_trained(report, {})
        return reports

    def _test(
        self, worker: Worker, reports: Sequence[LocalReport], trained: dict[int, Tensors], tensors: Tensors | None
    ) -> dict[int, dict[str, Score]]:
        clients = [report.client for report in reports]
        if self.test is None or not clients:
            return {}
        begin = perf_counter()
        found = self.test.pending(worker, clients, [trained[client] for client in clients], tensors)
        scores = read_scores_by_split(found)
        seconds = (perf_counter() - begin) / len(clients)
        for report in reports:
            report.test_seconds = seconds
        return dict(zip(clients, scores, strict=True))

    def _mark_trained(self, report: LocalReport, scores: dict[str, Score]) -> None:
        """Marks the client as trained, last of all.

        Another client may raise before this result is consumed, and a client whose state is written must not train
        again.
        """
        self.state.unfinished.scores[report.client] = scores
        self.state.unfinished.reports[report.client] = report

    def _upload(self, runner: Runner, unit: list[int], rows: list[int], tensors: Tensors) -> Tensors:
        """Writes the uploads of the clients in ``rows`` that upload; returns ``[C, *shape]`` uploads of the unit."""
        uploads, rows = self.state.unfinished.uploads, [row for row in rows if unit[row] in self.upload_rows]
        if not rows or not (uploads or self.uploads_in_place):
            return {}
        own = runner.as_stack(tensors)
        specs = [spec for spec in self.state.clients.part_table.uploaded if spec.exchanged(self.round)]
        values = {str(spec.upload_to): own[spec.key] for spec in specs}
        if type(self.method).upload is not Method.upload:
            changed = runner.call(self.method.upload, tensors)
            values.update({name: changed[name] for name in values.keys() & changed.keys()})
        if self.uploads_in_place and len(unit) == len(self.upload_rows):
            uploads.update(values)
            return values
        if not uploads:
            uploads.update({n: v.new_empty((len(self.upload_rows), *v.shape[1:])) for n, v in values.items()})
        sent = {name: _rows(values[name], rows) for name in uploads}
        write_rows(uploads, [self.upload_rows[unit[row]] for row in rows], sent)
        return values


def _rows(values: Tensor, rows: list[int]) -> Tensor:
    """Returns rows of ``values [C, *shape]``, not copied if they are all."""
    return values if len(rows) == len(values) else values[to_device(rows, values.device)]
