"""One communication round, step by step. It knows no method, no executor and no file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch

from pfl_fast import ops
from pfl_fast.data.federated import FederatedData
from pfl_fast.engine.client_results import LocalReport, Score, Scores
from pfl_fast.engine.client_work import ClientTest, ClientWork, Observer
from pfl_fast.engine.executors import Executor
from pfl_fast.engine.local.optimizer import StepSettings
from pfl_fast.engine.local.single import SingleRunner
from pfl_fast.engine.mixture import RoundUploads
from pfl_fast.engine.out_of_memory import InHalves
from pfl_fast.engine.ranks import Ranks
from pfl_fast.engine.results.metrics import pooled
from pfl_fast.engine.results.records import RoundRecord, Stopwatch
from pfl_fast.engine.results.scores import read_scores_by_split
from pfl_fast.engine.sampling import Cohort, sample
from pfl_fast.engine.settings import RoundSettings
from pfl_fast.engine.sharding import Shards
from pfl_fast.engine.state.client_state import ClientState
from pfl_fast.engine.state.part_table import PartTable
from pfl_fast.engine.state.run_state import RunState
from pfl_fast.engine.worker import TestSettings
from pfl_fast.methods.base import Method, Tensors
from pfl_fast.transfer import to_device


class Round:
    """Runs communication rounds.

    1. sample the cohort   2. train clients   3. aggregate   4. distribute   5. evaluate   6. record

    ``on_client`` is called after each client's training: number of clients done, of how many, the client's report.
    ``observer`` returns a function that receives each trained client's tensors and upload, or None. ``log`` receives
    messages. Each of ``ranks`` trains and tests its own clients; all know the reports, scores and server tensors.
    """

    def __init__(
        self,
        settings: RoundSettings,
        part_table: PartTable,
        method: Method,
        data: FederatedData,
        clients: ClientState,
        executor: Executor,
        on_client: Callable[[int, int, LocalReport], None],
        observer: Callable[[], Observer | None],
        log: Callable[[str], None],
        ranks: Ranks,
    ) -> None:
        self.settings = settings
        self.part_table = part_table
        self.method = method
        self.data = data
        self.executor = executor
        self.on_client = on_client
        self.observer = observer
        self.log = log
        self.ranks = ranks
        self.shards = Shards(ranks, data.stack_order(range(data.clients)))
        clients.keeps = self.shards.keeps(data.clients)
        self.device = executor.workers[0].device
        server = {name: tensor.to(self.device) for name, tensor in part_table.new_server().items()}
        self.state = RunState(server, clients)
        self.uploads_are_reusable = True
        self.upload_memory: Tensors = {}  # of the last round, reused: allocating takes as long as averaging

    def run(self) -> RoundRecord:
        """Runs the next round. If interrupted, clients that have trained do not train again."""
        number, watch = self.state.rounds_done + 1, Stopwatch()
        # 1. sample the cohort
        cohort = self.cohort(number)
        # 2. train clients
        self.train(cohort, number)
        watch.lap("local")
        # 3. aggregate
        skipped = self.aggregate(cohort, number)
        watch.lap("aggregate")
        # 4. distribute
        self.state.clients.store_received(self.shards.own(cohort.receiving), self.state.server, number)
        watch.lap("distribute")
        # 5. evaluate
        trained = self.state.finish_round()
        self.upload_memory = trained.uploads if self.uploads_are_reusable else {}
        scores = self.evaluate(cohort, number)
        global_score = self.test_global(number, scores)
        watch.lap("test_aggregated")
        # 6. record
        record = RoundRecord(number, evaluated=self.is_evaluated(number), cohort=cohort, skipped=skipped)
        # On pooled data, a client's model after local training is the one after aggregation.
        after_local = scores if scores and self.pools_data(number) and self.settings.eval_at != "after_agg" else None
        record.add_local_results(trained.reports, after_local or trained.scores)
        record.add_traffic(self.part_table, cohort, self.data.clients, number)
        record.add_scores_after_aggregation(scores, global_score)
        units = len(self.executor.units(self.shards.own(cohort.training))) or 1
        return record.finish(watch.laps, min(len(self.executor.workers), units) * self.ranks.size)

    def run_initial(self) -> RoundRecord:
        """Tests the untrained model, as round 0."""
        record = RoundRecord(0, evaluated=True, cohort=Cohort([], [], []), skipped=[])
        scores = self.test_clients(range(self.data.clients), 0)
        record.add_scores_after_aggregation(scores, self.test_global(0, scores))
        return record.finish({}, 1)

    # 1. sample the cohort

    @property
    def last_round(self) -> int:
        """Number of the last round; the final phases of a method count as one more round."""
        return self.settings.rounds + bool(self.method.final_phases())

    def is_final_round(self, number: int) -> bool:
        """Returns whether clients train the final phases in a round; nothing is uploaded then."""
        return number > self.settings.rounds

    def cohort(self, number: int) -> Cohort:
        """Returns the clients of a round."""
        if self.is_final_round(number):
            return Cohort(training=list(range(self.data.clients)), uploading=[], receiving=[])
        if self.pools_data(number):
            return Cohort(training=[0], uploading=[0], receiving=[0])
        return sample(self.settings, self.data.clients, number)

    def pools_data(self, number: int) -> bool:
        """Returns whether one client trains on the data of all in a round; every client is tested with its result."""
        return not self.is_final_round(number) and any(phase.pooled for phase in self.method.phases(number))

    # 2. train clients

    def train(self, cohort: Cohort, number: int) -> None:
        """Trains the clients of the cohort that have not trained yet in this round; gathers reports and scores."""
        unfinished = self.state.unfinished
        own = self.shards.own_cohort(cohort)

        def train_own() -> tuple[dict[int, LocalReport], dict[int, dict[str, Score]]]:
            self.train_own(own, number)
            return unfinished.reports, unfinished.scores

        for reports, scores in self.ranks.gather(train_own):
            unfinished.reports.update(reports)
            unfinished.scores.update(scores)

    def train_own(self, cohort: Cohort, number: int) -> None:
        """Trains this rank's part of a cohort."""
        unfinished, final = self.state.unfinished, self.is_final_round(number)
        waiting = [client for client in cohort.training if client not in unfinished.reports]
        units = self.executor.units(self.data.stack_order(waiting))
        in_place = self.executor.stacks and len(self.executor.workers) == 1 and units == [cohort.uploading]
        if not unfinished.uploads and not in_place:
            unfinished.uploads = self.allocate_uploads(cohort, number)
        after_local = self.settings.eval_at != "after_agg" and not self.pools_data(number)
        tests = self.is_evaluated(number) and (final or after_local)
        work = ClientWork(
            self.method,
            self.state,
            number,
            phases=self.method.final_phases() if final else self.method.phases(number),
            step=self.step_settings(number),
            test=self.client_test(number, "final_round" if final else "after_local") if tests else None,
            upload_rows={client: row for row, client in enumerate(cohort.uploading)},
            uploads_in_place=in_place,
            on_nan=self.settings.on_nan,
            observe=self.observer(),
        )
        self.uploads_are_reusable = not in_place
        done = len(cohort.training) - len(waiting)
        trains = InHalves(work, self.executor, unfinished.reports, self.log)
        for _, reports in self.executor.run(units, trains):
            for report in reports:
                done += 1
                self.on_client(done, len(cohort.training), report)

    def step_settings(self, number: int) -> StepSettings:
        """Returns the optimizer settings of a round."""
        s = self.settings
        lr = s.learning_rate(number)
        return StepSettings(lr, s.momentum, s.weight_decay, s.seed, number, s.on_nan != "report", s.precision == "bf16")

    def test_settings(self, number: int, whole_batches: int = 0) -> TestSettings:
        """Returns the settings of a test after round ``number``."""
        return TestSettings(self.settings.seed, number, whole_batches, self.settings.precision == "bf16")

    def allocate_uploads(self, cohort: Cohort, number: int) -> Tensors:
        """Returns uninitialised blocks ``[S, *shape]`` for the uploads, by server tensor."""
        old, self.upload_memory, blocks = self.upload_memory, {}, {}
        for spec in self.part_table.uploaded:
            if spec.upload_to and spec.exchanged(number):
                shape = (len(cohort.uploading), *spec.value.shape)
                block = old.pop(spec.upload_to, None)
                if block is None or block.shape != shape:
                    block = torch.empty(shape, dtype=spec.value.dtype, device=self.device)
                blocks[spec.upload_to] = block
        return blocks

    # 3. aggregate

    def aggregate(self, cohort: Cohort, number: int) -> list[int]:
        """Updates the server's tensors from the uploads; returns the skipped clients."""
        reports, uploads = self.state.unfinished.reports, self.state.unfinished.uploads
        skipped = {c for c, report in reports.items() if report.problem and self.settings.on_nan == "skip"}
        clients = [client for client in cohort.uploading if client not in skipped]
        if clients and uploads:
            own = self.shards.own(cohort.uploading)
            rows = [row for row, client in enumerate(own) if client not in skipped]
            if len(rows) < len(own):
                uploads = {name: block[rows] for name, block in uploads.items()}
            sizes = to_device(torch.tensor(self.data.train_sizes[clients], dtype=torch.float64), self.device)
            if self.averages_in_ranks:
                self.state.server.update(self.shards.average(uploads, sizes / sizes.sum(), clients))
                return sorted(skipped)
            uploads = self.shards.all_uploads(uploads, clients)
            self.state.server.update(self.method.aggregate(self.state.server, uploads, sizes))
            if self.part_table.mixed:
                self.mix(clients, uploads, number)
        return sorted(skipped)

    @property
    def averages_in_ranks(self) -> bool:
        """True if ranks exchange weighted sums of their clients' uploads, not the uploads."""
        averages = type(self.method).aggregate is Method.aggregate and not self.part_table.mixed
        return averages and self.ranks.size > 1

    def mix(self, clients: list[int], uploads: Tensors, number: int) -> None:
        """Gives each client its own mixture of the uploads."""
        inputs = RoundUploads(self.state, self.shards, self.executor, clients, uploads, self.test_settings(number))
        weights, changed = self.method.mixture(inputs)
        self.state.server.update(changed)
        specs, rows = self.part_table.mixed, self.shards.own_rows(clients)
        blocks = [uploads[str(spec.mixture_of)] for spec in specs]
        own = weights[to_device(rows, weights.device)]
        mixed = ops.aggregate(blocks, own.to(blocks[0])) if rows else []
        for row, client in enumerate(clients[row] for row in rows):
            values = {spec.key: block[row] for spec, block in zip(specs, mixed, strict=True)}
            self.state.clients.write(client, values)

    # 5. evaluate

    def is_evaluated(self, number: int) -> bool:
        """Returns whether models are tested in a round."""
        return number % self.settings.eval_every == 0 or number >= self.settings.rounds

    def evaluate(self, cohort: Cohort, number: int) -> Scores | None:
        """Returns the scores of clients after aggregation, or None in rounds without this test."""
        only_local = self.settings.eval_at == "after_local" and not self.pools_data(number)
        if not self.is_evaluated(number) or only_local or self.is_final_round(number):
            return None
        selected = self.settings.eval_clients == "selected" and not self.pools_data(number)
        return self.test_clients(cohort.training if selected else range(self.data.clients), number)

    def test_clients(self, clients: Sequence[int], number: int) -> Scores:
        """Returns the scores of clients with their current tensors; each rank tests its own."""
        test = InHalves(self.client_test(number, "after_agg"), self.executor, {}, self.log)

        def test_own() -> dict[int, dict[str, Score]]:
            units = self.executor.test_units(self.data.stack_order(self.shards.own(clients)))
            results = self.executor.run(units, test)
            found = {client: row for unit, rows in results for client, row in zip(unit, rows, strict=True)}
            return dict(zip(found, read_scores_by_split(list(found.values())), strict=True))

        return dict(sorted(item for of_rank in self.ranks.gather(test_own) for item in of_rank.items()))

    def client_test(self, number: int, at: str) -> ClientTest:
        """Returns the test of clients after round ``number``."""
        whole = self.data.batch_size if self.settings.drop_last_test else 0
        settings = self.test_settings(number, whole)
        return ClientTest(self.method, self.state, self.data.tests, settings, self.step_settings(number + 1), at)

    def test_global(self, number: int, scores: Scores | None) -> Score | None:
        """Returns the score of the server's model on the union of the clients' test samples.

        None without a model, or in rounds without this test. If all clients hold the server's model, accuracy and loss
        are pooled from the clients' ``scores``.
        """
        if scores is None or not self.settings.eval_global or not self.part_table.server_has_statistics:
            return None
        own = [by_split["test"] for by_split in scores.values()]
        if self.clients_predict_as_server and sum(score.samples for score in own) == len(self.data.union("test")):
            return pooled(own)
        return self.executor.workers[0].test_global(self.state.server, self.test_settings(number))

    @property
    def clients_predict_as_server(self) -> bool:
        """True if every client is tested with the server's model."""
        method = self.method
        adapted = method.before_test(1, "after_agg") or self.settings.drop_last_test
        return not adapted and method.predicts_as_server and self.part_table.clients_hold(method.prediction_parts)

    # between rounds

    def complete_state(self) -> RunState:
        """Returns on rank 0 the state of all clients; called by all ranks."""
        next_cohort = self.cohort(self.state.rounds_done + 1)
        new_uploads = partial(self.allocate_uploads, next_cohort, self.state.rounds_done + 1)
        return self.shards.complete(self.state, next_cohort, new_uploads)

    def restored(self) -> None:
        """Called after the state of a checkpoint was read, which is that of all ranks."""
        self.shards.take_own_uploads(self.state.unfinished, self.cohort(self.state.rounds_done + 1))

    def client_tensors(self, client: int) -> Tensors:
        """Returns all current tensors of a client, not copied."""
        final = self.is_final_round(self.state.rounds_done)
        return self.state.clients.view(client, self.state.server, receives=False, final=final)

    def test_now(self, clients: Iterable[int]) -> Scores:
        """Returns the scores of clients between rounds, also after the final one, each with its current tensors."""
        number, worker = self.state.rounds_done, self.executor.workers[0]
        test = self.client_test(number, "final_round" if self.is_final_round(number) else "after_agg")
        found = {client: test.pending(worker, [client], [self.client_tensors(client)])[0] for client in clients}
        return dict(zip(found, read_scores_by_split(list(found.values())), strict=True))

    def evaluation_tensors(self, client: int) -> Tensors:
        """Returns the tensors with which a client is tested now; copies if the method adapts them before a test."""
        number, worker, tensors = self.state.rounds_done, self.executor.workers[0], self.client_tensors(client)
        phases = self.method.before_test(number + 1, "final_round" if self.is_final_round(number) else "after_agg")
        if not phases:
            return tensors
        runner = SingleRunner(self.part_table, self.method, worker.data, worker.device)  # others may be training
        return worker.adapt(runner, [client], [tensors], phases, self.step_settings(number + 1))
