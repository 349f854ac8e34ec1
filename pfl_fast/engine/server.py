"""The round, step by step. The server knows no method, no executor and no file: parts, workers and listeners do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

import torch

from pfl_fast import ops
from pfl_fast.data.federated import FederatedData
from pfl_fast.engine.executor import Executor, Trained, Worker
from pfl_fast.engine.local.optimizer import StepSettings
from pfl_fast.engine.local.single import LocalReport
from pfl_fast.engine.results.metrics import Score, pooled
from pfl_fast.engine.results.records import RoundRecord, Stopwatch
from pfl_fast.engine.sampling import Cohort, sample
from pfl_fast.engine.settings import RoundSettings
from pfl_fast.engine.state.client_state import ClientState
from pfl_fast.engine.state.part_table import PartTable
from pfl_fast.engine.state.run_state import PartialRound, RunState
from pfl_fast.errors import PflFastError
from pfl_fast.methods.base import Method, Tensors


class NotFinite(PflFastError):  # noqa: N818 says what it is
    """A client's loss or parameters became NaN or infinite, and the policy is to stop."""

    def __init__(self, round: int, report: LocalReport) -> None:
        super().__init__(
            f"round {round}, client {report.client}: {report.problem}. A smaller --lr usually helps; --on-nan skip "
            "leaves such a client out of the round, --on-nan report goes on regardless"
        )


@dataclass(frozen=True)
class Uploads:
    """What a mixture may be made from, see :class:`pfl_fast.methods.base.Exchange`."""

    runs: Server
    clients: list[int]
    uploads: Tensors

    @property
    def server(self) -> Tensors:
        """The server's tensors."""
        return self.runs.tensors

    def tensors(self, client: int) -> Tensors:
        """All tensors of a client by name, after its training."""
        return self.runs.state.view(client, self.runs.tensors, receives=False)

    def losses(self, questions: Sequence[tuple[int, Tensors]]) -> list[float]:
        """The loss of each client with some of its tensors replaced, on its validation samples, or training samples."""
        runs, number = self.runs, self.runs.rounds_done + 1

        def work(worker: Worker, question: int) -> float:
            client, replaced = questions[question]
            split = "validation" if runs.data.validation_sizes[client] else "train"
            tensors = {**self.tensors(client), **replaced}
            return worker.test(client, tensors, split, number, runs.settings.seed).loss

        answers = dict(runs.executor.run(range(len(questions)), work))
        return [answers[question] for question in range(len(questions))]


class Server:
    """Runs rounds.

    Args:
        settings: how.
        layout: the part table.
        method: what.
        data: of the clients.
        state: of the clients.
        executor: how clients run side by side.
        on_client: told about each client that has trained: how many have, of how many, and its report.
    """

    def __init__(
        self,
        settings: RoundSettings,
        part_table: PartTable,
        method: Method,
        data: FederatedData,
        state: ClientState,
        executor: Executor,
        on_client: Callable[[int, int, LocalReport], None],
    ) -> None:
        self.settings = settings
        self.part_table = part_table
        self.method = method
        self.data = data
        self.executor = executor
        self.on_client = on_client
        self.device = executor.workers[0].device
        self.run_state = RunState({name: t.to(self.device) for name, t in part_table.new_server().items()}, state)
        self.last_uploads: Tensors = {}  # whose memory the next round's take: fresh pages cost as much as an average

    @property
    def tensors(self) -> Tensors:
        """Server tensors."""
        return self.run_state.server

    @property
    def state(self) -> ClientState:
        """Stored tensors of the clients."""
        return self.run_state.clients

    @property
    def rounds_done(self) -> int:
        """Number of finished rounds."""
        return self.run_state.rounds_done

    @property
    def unfinished(self) -> PartialRound:
        """Results of the round under way."""
        return self.run_state.unfinished

    def round(self) -> RoundRecord:
        """One round; if it is interrupted, clients that have trained need not train again."""
        number, watch = self.rounds_done + 1, Stopwatch()
        # 1. who takes part
        cohort = self.cohort(number)
        # 2. to 4. receive, train locally, test after local training, form uploads
        self.train(cohort, number)
        watch.lap("local")
        # 5. aggregate
        skipped = self.aggregate(cohort)
        watch.lap("aggregate")
        # 6. send
        self.state.send(cohort.receiving, self.tensors, number)
        watch.lap("distribute")
        # 7. test after aggregation
        work = self.run_state.finish_round()
        self.last_uploads = work.uploads
        record = self.record(number, cohort, work, skipped)
        watch.lap("test_aggregated")
        return record.finish(watch.laps, len(self.executor.workers))

    # 1.

    @property
    def last_round(self) -> int:
        """The number of the last round; a method's final phases count as one more."""
        return self.settings.rounds + bool(self.method.final_phases())

    def is_final_round(self, number: int) -> bool:
        """Whether a round is that of the final phases: every client on its own, nothing is sent up or averaged."""
        return number > self.settings.rounds

    def cohort(self, number: int) -> Cohort:
        """The clients of a round."""
        if self.is_final_round(number):
            return Cohort(training=list(range(self.data.clients)), uploading=[], receiving=[])
        return sample(self.settings, self.data.clients, number)

    # 2. to 4.

    def train(self, cohort: Cohort, number: int) -> None:
        """Local training of those that have not trained yet in this round."""
        self._allocate_uploads(cohort, number)
        slots = {client: slot for slot, client in enumerate(cohort.uploading)}
        step_settings = self.step_settings(number)
        phases = self.method.final_phases() if self.is_final_round(number) else self.method.phases(number)
        tests = self.is_evaluated(number) and (self.settings.eval_at != "after_agg" or self.is_final_round(number))

        def work(worker: Worker, unit: list[int]) -> list[LocalReport]:
            views = [self.state.view(client, self.tensors, round=number) for client in unit]
            trained = worker.train(unit, views, phases, step_settings, stack=self.executor.kind == "batched")
            return [self.finish(worker, t, number, slots, tests) for t in trained]

        todo = [c for c in cohort.training if c not in self.unfinished.reports]
        done = len(cohort.training) - len(todo)
        for _, reports in self.executor.run(self.executor.units(self.data.stack_order(todo)), work):
            for report in reports:
                done += 1
                self.on_client(done, len(cohort.training), report)

    def step_settings(self, number: int) -> StepSettings:
        """How parameters are stepped in round ``number``."""
        s = self.settings
        lr = s.lr * s.lr_decay ** (number - 1)
        return StepSettings(lr, s.momentum, s.weight_decay, s.seed, number, stop_at_nan=s.on_nan != "report")

    def finish(self, worker: Worker, trained: Trained, number: int, slots: dict[int, int], tests: bool) -> LocalReport:
        """Tests what a client has become, keeps it and forms its upload; a client with a problem is dealt with.

        The word that it has trained is kept here too, and last: a round may end by an error elsewhere before anybody
        asks for what is returned, and a client whose state is written must not train again.
        """
        report, tensors = trained.report, trained.tensors
        if report.problem and self.settings.on_nan == "stop":
            raise NotFinite(number, report)
        scores: dict[str, Score] = {}
        if not (report.problem and self.settings.on_nan == "skip"):
            at = "final_round" if self.is_final_round(number) else "after_local"
            begin = perf_counter()
            scores = self.test(worker, report.client, tensors, number, at) if tests else {}
            report.test_seconds = perf_counter() - begin
            self.keep(report.client, tensors, slots)
        self.unfinished.scores[report.client] = scores
        self.unfinished.reports[report.client] = report
        return report

    def keep(self, client: int, tensors: Tensors, slots: dict[int, int]) -> None:
        """Writes what a client has become to its state, and to its slot of the uploads if it has one."""
        if client in slots:
            values = {e.upload_to: tensors[e.key] for e in self.part_table.uploaded}
            values.update(self.method.upload(tensors))
            for name, block in self.unfinished.uploads.items():
                block[slots[client]].copy_(values[name])
        self.state.write(client, tensors)

    def _allocate_uploads(self, cohort: Cohort, number: int) -> None:
        if self.unfinished.uploads:
            return
        old, self.last_uploads = self.last_uploads, {}
        for spec in (e for e in self.part_table.uploaded if e.exchanged(number)):
            name, shape = str(spec.upload_to), (len(cohort.uploading), *spec.value.shape)
            block = old.pop(name, None)
            if block is None or block.shape != shape:
                block = torch.empty(shape, dtype=spec.value.dtype, device=self.device)
            self.unfinished.uploads[name] = block

    # 5.

    def aggregate(self, cohort: Cohort) -> list[int]:
        """The server's tensors become what the method makes of the uploads. Returns skipped clients."""
        reports = self.unfinished.reports
        skips = self.settings.on_nan == "skip"
        slots = [i for i, c in enumerate(cohort.uploading) if not (skips and reports[c].problem)]
        uploads = self.unfinished.uploads
        if slots and uploads:
            if len(slots) < len(cohort.uploading):
                uploads = {name: block[slots] for name, block in uploads.items()}
            clients = [cohort.uploading[i] for i in slots]
            sizes = torch.tensor(self.data.train_sizes[clients], dtype=torch.float64, device=self.device)
            self.tensors.update(self.method.aggregate(self.tensors, uploads, sizes))
            if self.part_table.mixed:
                self.mix(clients, uploads)
        return sorted(c for c in reports if skips and reports[c].problem)

    def mix(self, clients: list[int], uploads: Tensors) -> None:
        """Each client gets its own mixture of the uploads."""
        shares, changed = self.method.mixture(Uploads(self, clients, uploads))
        self.tensors.update(changed)
        specs = self.part_table.mixed
        mixed = ops.aggregate([uploads[str(e.mixture_of)] for e in specs], shares.to(uploads[str(specs[0].mixture_of)]))
        for row, client in enumerate(clients):
            self.state.write(client, {e.key: block[row] for e, block in zip(specs, mixed, strict=True)})

    # 7.

    def is_evaluated(self, number: int) -> bool:
        """Whether a round's models are tested."""
        return number % self.settings.eval_every == 0 or number >= self.settings.rounds

    def test(
        self, worker: Worker, client: int, tensors: Tensors, number: int, at: str = "after_agg"
    ) -> dict[str, Score]:
        """One client's scores, by split."""
        tensors = self.adapted(worker, client, tensors, number, at)
        whole = self.data.batch_size if self.settings.drop_last_test else 0
        return {
            split: worker.test(client, tensors, split, number, self.settings.seed, whole) for split in self.data.tests
        }

    def adapted(self, worker: Worker, client: int, tensors: Tensors, number: int, at: str) -> Tensors:
        """A client's tensors after what the method does before a test of what they were after round ``number``."""
        phases = self.method.before_test(number + 1, at)
        return worker.adapt(client, tensors, phases, self.step_settings(number + 1)) if phases else tensors

    def evaluation_tensors(self, client: int) -> Tensors:
        """All tensors of a client as they are tested now; copies if the method adapts them before."""
        at = "final_round" if self.is_final_round(self.rounds_done) else "after_agg"
        return self.adapted(self.executor.workers[0], client, self.view(client), self.rounds_done, at)

    def view(self, client: int) -> Tensors:
        """All tensors of a client as they are now, not copied."""
        return self.state.view(client, self.tensors, receives=False, final=self.is_final_round(self.rounds_done))

    def evaluate(self, clients: Sequence[int], number: int) -> dict[int, dict[str, Score]]:
        """Clients' scores with what they hold now."""

        def work(worker: Worker, client: int) -> dict[str, Score]:
            return self.test(worker, client, self.view(client), number)

        return dict(sorted(self.executor.run(clients, work)))

    def record(self, number: int, cohort: Cohort, work: PartialRound, skipped: list[int]) -> RoundRecord:
        """Everything that is known about a round; tests after aggregation are made here."""
        record = RoundRecord(number, evaluated=self.is_evaluated(number), cohort=cohort, skipped=skipped)
        record.add_local_results(work.reports, work.scores)
        record.add_traffic(self.part_table, cohort, self.data.clients, number)
        if record.evaluated and self.settings.eval_at != "after_local" and not self.is_final_round(number):
            tested = cohort.training if self.settings.eval_clients == "selected" else range(self.data.clients)
            scores = self.evaluate(tested, number)
            record.after_agg(scores)
            record.global_score(self.test_global(number, scores))
        return record

    def test_global(self, number: int, scores: Mapping[int, Mapping[str, Score]]) -> Score | None:
        """The server's model on the union of the clients' test samples, where there is such a model.

        Where it is what clients hold, their ``scores`` tell.
        """
        if not self.settings.eval_global or not self.part_table.server_has_statistics:
            return None
        own = [by_split["test"] for by_split in scores.values()]
        if self.clients_hold_the_servers_model and sum(score.samples for score in own) == len(self.data.union("test")):
            return pooled(own)
        return self.executor.workers[0].test_global(self.tensors, number, self.settings.seed)

    @property
    def clients_hold_the_servers_model(self) -> bool:
        """Whether every client predicts by the server's extractor and head."""
        kind = type(self.method)
        plain = kind.predict is Method.predict and kind.predict_global is Method.predict_global
        tested = [e for e in self.part_table.model_specs if e.part in ("extractor", "head")]
        received = all(e.to_all and e.receive_from == e.key for e in tested)
        return plain and received and not self.method.before_test(1, "after_agg") and not self.settings.drop_last_test

    def initial_record(self) -> RoundRecord:
        """The untrained model's scores, as round 0."""
        record = RoundRecord(0, evaluated=True, cohort=Cohort([], [], []), skipped=[])
        scores = self.evaluate(range(self.data.clients), 0)
        record.after_agg(scores)
        record.global_score(self.test_global(0, scores))
        return record.finish({}, 1)
