"""An experiment: data, partition, model, method and settings. The only file that knows all parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

from torch import nn

from pfl_fast import assembly, config, ops, trust
from pfl_fast.client_model import ClientModel
from pfl_fast.data.dataset import IMPORTED, Dataset
from pfl_fast.data.own_data import as_dataset, content_hash, description
from pfl_fast.data.partition import Partition, can_be_made
from pfl_fast.engine.client_results import Bests, LocalReport, Scores
from pfl_fast.engine.client_work import Observer
from pfl_fast.engine.device_memory import choose_stack
from pfl_fast.engine.executors import EXECUTORS, choose_executor
from pfl_fast.engine.local.arithmetic import arithmetic
from pfl_fast.engine.local.capture import Programs
from pfl_fast.engine.memory import Estimate, estimate, refuse_if_too_large, refuse_too_many_clients
from pfl_fast.engine.out_of_memory import explained
from pfl_fast.engine.probe import check_phases, why_not_stacked
from pfl_fast.engine.ranks import Ranks, current_ranks
from pfl_fast.engine.results.client_rows import client_names
from pfl_fast.engine.results.data_description import read_description
from pfl_fast.engine.results.disk_errors import RunFolderError
from pfl_fast.engine.results.listeners import Listener
from pfl_fast.engine.results.metrics import find_metrics
from pfl_fast.engine.results.protocol import find_protocol
from pfl_fast.engine.results.records import TEST_ACCURACIES, RoundRecord, keep_bests, summarise_run
from pfl_fast.engine.results.run_folder import RunFolder
from pfl_fast.engine.results.snapshots import Snapshots
from pfl_fast.engine.round import Round
from pfl_fast.engine.state.client_state import ClientState
from pfl_fast.engine.state.part_table import PartTable
from pfl_fast.engine.state.run_state import RunState
from pfl_fast.engine.stopping import Interrupted, raise_if_stopped, stop_on_signals
from pfl_fast.engine.worker import Worker
from pfl_fast.errors import ConfigError, PflFastError, did_you_mean
from pfl_fast.methods import METHODS, Method
from pfl_fast.methods.base import Tensors
from pfl_fast.models import absolute_code, batch_norm_tensors
from pfl_fast.notebook import Records, html_facts
from pfl_fast.options import plain
from pfl_fast.own_objects import described
from pfl_fast.progress import chosen_progress
from pfl_fast.randomness import key, torch_seed
from pfl_fast.scratch import remove_unfinished, scratch_folder

OBJECTS = ("method", "dataset", "model", "partition")  # arguments that accept objects as well as names


class Experiment:
    """Trains every client of a federation in this process, or in all ranks that torchrun has started.

    Args:
        method: name of a method, ``"file.py:Class"``, ``"package.module:Class"``, or a subclass of
            :class:`pfl_fast.methods.Method`.
        dataset: name of a data set, path of own files (:mod:`pfl_fast.data.own_files`), a :class:`pfl_fast.Dataset`, a
            pair ``(x, y)`` of arrays or tensors, or a map-style data set of torch, see
            :func:`pfl_fast.data.own_data.as_dataset`; None: that of the preset, else ``"tiny"``.
        model: name of a model, ``"module:attribute"``, or (with ``head``) an ``nn.Module``, or a class or function of
            ``(input_shape, classes)``; None: that of the preset, else ``"auto"``.
        partition: name of a rule, folder of a saved one, ``.csv`` or ``.json`` file, a :class:`pfl_fast.Partition`, or
            a list with the sample numbers of each client, or with its pair ``(train, test)`` of them; None: that of the
            preset, else ``"auto"``.
        preset: preset of the method, such as ``"paper"``.
        out: run folder, see :mod:`pfl_fast.engine.results.run_folder`; None: nothing is written.
        log: called with every message to the user.
        overwrite: replace the run in ``out``, if there is one; other folders and runs that are being trained are
            refused.
        resolved: settings and options that :func:`pfl_fast.assembly.resolve` returned, instead of preset and values.
        values: settings (``rounds=10``) and options of the method (``lam=1``).

    >>> import torch
    >>> experiment = Experiment("fedper", dataset="synthetic", samples=600, clients=4, rounds=2, model="mlp")
    >>> for record in experiment.rounds():
    ...     print(record["round"], record["clients_trained"])
    1 4
    2 4
    >>> experiment.client(0)(torch.zeros(1, *experiment.data.input_shape)).shape
    torch.Size([1, 10])
    """

    def __init__(
        self,
        method: str | type[Method] = "fedcp",
        *,
        dataset: object = None,
        model: str | nn.Module | Callable[..., nn.Module] | None = None,
        partition: str | Path | Partition | Iterable[Any] | None = None,
        preset: str | None = None,
        out: str | Path | None = None,
        log: Callable[[str], None] = print,
        resolved: assembly.Resolved | None = None,
        overwrite: bool = False,
        **values: Any,
    ) -> None:
        self.ranks = current_ranks()
        self.method_class = assembly.find_method(method)
        self._named_method = absolute_code(method) if isinstance(method, str) else None
        if dataset is not None and not isinstance(dataset, str):
            dataset = as_dataset(dataset)
            values["dataset"] = description(dataset)
        own_model = None if model is None or isinstance(model, str) else model
        if own_model is not None:
            values["model"] = assembly.describe_model(own_model)
        given = {"dataset": dataset, "model": model, "partition": partition}
        values.update({n: str(value) for n, value in given.items() if isinstance(value, (str, Path))})
        resolved = resolved or assembly.resolve(self.method_class, values, preset=preset)
        self.metrics = find_metrics(resolved.settings.metrics, log)
        self.dataset = dataset if isinstance(dataset, Dataset) else assembly.load_named(resolved.settings, log)
        resolved = resolved.with_model(assembly.model_name(resolved.settings.model, self.dataset))
        s, self.options = resolved.settings, resolved.options
        if s.ops == "native" and not ops.NATIVE.available:
            raise ConfigError(
                f"ops: the native library is not available ({ops.NATIVE.problem}); take auto or reference"
            )
        if s.dtype != "float32" and s.precision != "highest":
            raise ConfigError(f"precision: {s.precision} is for dtype float32, got dtype {s.dtype}")
        if s.snapshots and self.ranks.size > 1:
            raise ConfigError(f"snapshots: are written in runs of one process, got {s.snapshots} with torchrun; take 0")
        self.partition, partition_name = assembly.partition_of(partition, self.dataset, s)
        self.settings = s = replace(s, partition=partition_name)
        source = own_model or s.model
        backbone = assembly.build_model(source, self.dataset, s)
        context = assembly.method_context(self.dataset, self.partition, s, self.method_class, backbone, source)
        self.method = self.method_class(self.options, context)
        with torch_seed(key(s.seed, "method")):
            parts = self.method.parts(backbone)
        for note in self.method.notes(parts):
            log(f"{self.method_class.title}: {note}")
        trained_parts = tuple(name for name, part in parts.items() if part.trained)
        self.method.context = replace(context, trained_parts=trained_parts)
        # All parts count: a method may add BatchNorm to a model without any.
        has_batch_norm = any(batch_norm_tensors(part.module) for part in parts.values())
        self.data = assembly.federated_data(self.dataset, self.partition, s, has_batch_norm)
        self.protocol = find_protocol(s.protocol, s.eval_at)
        self.protocol.check(
            s.eval_at,
            validation="validation" in self.data.tests,
            domains=self.dataset.domain is not None,
            finetuned=bool(self.method.final_phases()),
            server=s.eval_global,
        )
        if s.broadcast_to_all:
            parts = {name: replace(part, recipients="all") for name, part in parts.items()}
        check_phases(self.method, parts)
        self.part_table = PartTable(parts, **assembly.part_table_settings(s, self.method))
        self.client_names = [names["client_name"] for names in client_names(self.data)]
        self.log = log
        self.listeners: list[Listener] = []
        self.folder = None if out is None else Path(out)
        self.records = Records()
        self.bests: Bests = {}
        self._stack = ExitStack()
        self._unlock: Callable[[], None] = lambda: None  # the run folder
        self._round: Round | None = None
        self._trains = self.has_data = True
        self._data_hash: str | None = None  # of data that is not loaded
        self._memory: Estimate | None = None
        if out is not None:
            self.ranks.together(partial(self._create, RunFolder(Path(out), s.checkpoint_seconds, log), overwrite))

    @classmethod
    def resume(
        cls, folder: str | Path, log: Callable[[str], None] = print, trusted: bool = True, **changes: Any
    ) -> Experiment:
        """Continues a run from its newest usable checkpoint; results equal those of an uninterrupted run to the bit.

        Args:
            folder: run folder, ``out`` of the experiment that started the run.
            log: called with every message to the user.
            trusted: load models and metrics ``module:attribute`` although this user did not start the run.
            changes: settings that do not change results (``executor``, ``device``, ...), more ``rounds``, and
                ``method``, ``dataset``, ``model`` and ``partition`` if they were objects instead of names.
        """
        ranks, run = current_ranks(), RunFolder(Path(folder), 0, log)
        saved = ranks.gather(lambda: run.open() if ranks.rank == 0 else None)[0]
        try:
            values = config.read_of_run(run.folder / "config.toml", saved, log)
            trust.check(run.folder / "config.toml", values, trusted)
            objects = cls._objects(run, values, changes)
            experiment = cls(log=log, **{**values, **changes, **objects})
            experiment.folder = run.folder
            run.seconds = experiment.settings.checkpoint_seconds
            text = saved or experiment.config_text()
            if experiment.settings.rounds != values.get("rounds"):
                text = config.with_rounds(text, experiment.settings.rounds)
            ranks.together(lambda: run.restore(experiment, text))
            experiment._check_restored(run)
        except BaseException:
            run.lock.release()
            raise
        if ranks.rank == 0:
            experiment._watch(run)
        return experiment

    @classmethod
    def load(
        cls,
        folder: str | Path,
        log: Callable[[str], None] = print,
        trusted: bool = True,
        data: bool = False,
        metrics: Iterable[str] = (),
        **objects: Any,
    ) -> Experiment:
        """Opens a run at its newest usable checkpoint, to use the models of its clients; the run is not changed.

        Args:
            folder: run folder; another process may be training the run.
            log: called with every message to the user.
            trusted: load models and metrics ``module:attribute`` although this user did not start the run.
            data: load the data set, which tests need. Without it, ``experiment.data`` has zeros of the right shape.
            metrics: names of further metrics for :meth:`test`.
            objects: ``method``, ``dataset``, ``model`` and ``partition`` if they were objects instead of names.

        >>> import tempfile, torch
        >>> folder = tempfile.mkdtemp()
        >>> options = {"samples": 600, "clients": 4, "rounds": 1, "model": "mlp", "log": lambda message: None}
        >>> summary = Experiment("fedper", dataset="synthetic", out=folder, **options).run()
        >>> Experiment.load(folder).client("client 3")(torch.zeros(1, 3, 32, 32)).shape
        torch.Size([1, 10])
        """
        run = RunFolder(Path(folder), 0, log)
        values = config.read_of_run(run.folder / "config.toml", run.saved_config(), log)
        trust.check(run.folder / "config.toml", values, trusted)
        # One client at a time is used, on the CPU; these settings do not change results.
        changes = {**objects, "device": "cpu", "executor": "sequential", "state": "memory", "capture": "off"}
        objects = cls._objects(run, values, changes)
        values |= changes
        names: list[str] = []
        data_hash: str | None = None
        if not data:
            objects["dataset"], names = read_description(run.folder)
            objects.setdefault("partition", run.own_partition())
            data_hash = run.saved_data_hash()
            method = assembly.find_method(objects.get("method", values["method"]))
            values["resolved"] = assembly.resolve(method, {n: v for n, v in values.items() if n != "method"})
        experiment = cls(log=log, **{**values, **objects})
        experiment._trains, experiment.has_data, experiment._data_hash = False, data, data_hash
        experiment.ranks = Ranks()
        experiment.client_names = names or experiment.client_names
        experiment.metrics |= find_metrics(metrics, log)
        run.restore(experiment, experiment.config_text())
        return experiment

    def _check_restored(self, run: RunFolder) -> None:
        done = self.ranks.gather(lambda: self.state.rounds_done)
        if len(set(done)) > 1:
            raise RunFolderError(
                f"{run.folder}: ranks read checkpoints of different rounds ({', '.join(map(str, done))}); the folder "
                "must be on a file system that all ranks share"
            )
        self.round.restored()

    @staticmethod
    def _objects(run: RunFolder, values: Mapping[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
        """Returns the objects of a resumed run, moved out of ``changes``; refuses changes that change results."""
        given = {name: value for name in OBJECTS if (value := changes.pop(name, None)) is not None}
        objects = {name: value for name, value in given.items() if not isinstance(value, str)}
        changes |= {name: value for name, value in given.items() if isinstance(value, str)}
        config.refuse_changes(values, changes)
        if "partition" not in objects and not can_be_made(values["partition"]):
            objects["partition"] = run.own_partition()
        return objects

    def _create(self, folder: RunFolder, overwrite: bool) -> None:
        if self.ranks.rank == 0:
            folder.create(self.config_text(), self.data, overwrite)
            trust.remember(folder.folder, {**asdict(self.settings), "method": self._named_method})
            self._watch(folder)

    def _watch(self, folder: RunFolder) -> None:
        self.listeners.append(folder)
        if self.settings.snapshots:
            self.listeners.append(Snapshots(folder.folder, self.settings.snapshots))
        self._unlock = folder.lock.release

    @property
    def round(self) -> Round:
        """Runs the rounds; created on first use, since its state takes memory."""
        if self._round is None:
            s = self.settings
            if self.folder is not None and self.ranks.rank == 0:
                remove_unfinished(self.folder)
            folder = self._stack.enter_context(scratch_folder(self.folder)) if s.state == "disk" else None
            devices = self.ranks.own_devices(assembly.find_devices(s.device))
            refuse_too_many_clients(self.part_table, self.data.clients, s, on_disk=folder is not None)
            with explained(devices[0]):
                state = ClientState(self.part_table, self.method, self.data.clients, s.seed, folder, devices[0])
                on_host = (
                    state
                    if folder is None and state.device.type == "cpu"
                    else ClientState(self.part_table, self.method, self.data.clients, s.seed)
                )
            with self._chosen_ops():
                tries = self._trains  # a loaded run has no samples to try
                problem = why_not_stacked(self.part_table, self.method, self.data, on_host, s) if tries else None
            name = choose_executor(s.executor, devices, problem)
            if problem:
                self.log(f"Clients are trained one by one: {problem}")
            make_worker = partial(
                Worker,
                part_table=self.part_table,
                method=self.method,
                data=self.data,
                metrics=self.metrics,
                programs=Programs(s.capture == "auto"),
            )
            executor = EXECUTORS[name](devices, self.ranks.own_workers(s.workers, devices[0]), s.stack, make_worker)
            self._stack.callback(executor.close)
            with self._chosen_ops():
                choose_stack(executor, self.part_table, self.method, self.data, s, self.log)
            self._round = Round(
                s,
                self.part_table,
                self.method,
                self.data,
                state,
                executor,
                self._client_done,
                self._observer,
                self.log,
                self.ranks,
            )
        return self._round

    @property
    def state(self) -> RunState:
        """State of the server and the clients."""
        return self.round.state

    @property
    def last_round(self) -> int:
        """Number of the last round; the final phases of a method count as one round."""
        return self.round.last_round

    def rounds(self) -> Iterator[dict[str, Any]]:
        """Trains round by round; yields each round's record.

        Ctrl-C, SIGTERM and SIGHUP raise :class:`Interrupted` between two steps; results and state are kept, and
        another call of :meth:`rounds` or :meth:`run` continues to the same results. All ranks call this function.
        Afterwards rank 0 has the state of all clients, the others that of their own.
        """
        if not self._trains:
            raise ConfigError("Experiment.load opens a run to use its models; Experiment.resume continues it")
        self.ranks.together(lambda: refuse_if_too_large(self.memory()))
        try:
            self._tell("started")
            yield from self._remaining_rounds()
            self._tell("finished", state=True)
        finally:
            self._unlock()

    def _remaining_rounds(self) -> Iterator[dict[str, Any]]:
        runs, stop, s = self.round, self.round.executor.stop, self.settings
        try:
            while runs.state.rounds_done < runs.last_round:
                explains = explained(runs.executor.workers[0].device)
                with stop_on_signals(stop), explains, self._chosen_ops(), arithmetic(s.precision, s.deterministic):
                    self.ranks.together(partial(raise_if_stopped, stop))
                    initial = self.settings.eval_initial and not self.records and not runs.state.rounds_done
                    record = runs.run_initial() if initial else runs.run()
                    self._keep(record)
                yield record.values
        except (Interrupted, PflFastError) as error:
            self._keep_what_there_is(error)
            raise

    def _keep_what_there_is(self, error: Exception) -> None:
        if self.ranks.size > 1 and (self.ranks.broken or error is not self.ranks.exchanged):
            return  # the other ranks do not know it: no checkpoint of all clients can be written
        if isinstance(error, Interrupted):
            stop, done = self.round.executor.stop, self.round.state.rounds_done
            error.signal = error.signal or stop.signal
            error.args = (f"{done} of {self.last_round} rounds are done; run() or rounds() continues",)
            self._tell("interrupted")
            stop.clear()
            stop.signal = None
            return
        with suppress(PflFastError):  # the first error is the cause of the second
            self._tell("interrupted")

    def _chosen_ops(self) -> AbstractContextManager[None]:
        return nullcontext() if self.settings.ops == "auto" else ops.use(self.settings.ops)

    def _tell(self, event: str, *arguments: object, state: bool = False) -> None:
        def tell() -> None:
            for listener in self.listeners:
                getattr(listener, event)(self, *arguments)
            if state:
                self.complete_state()

        self.ranks.lead(tell, self.round.complete_state)

    def complete_state(self) -> RunState:
        """Returns the state with that of all ranks' clients; for listeners, which rank 0 calls."""
        self.ranks.ask()
        return self.round.complete_state()

    def run(self, progress: bool | None = None) -> dict[str, Any]:
        """Trains all rounds and returns the summary. After an interruption, call it again to continue.

        Args:
            progress: show rounds, accuracy and remaining time; None: in notebooks only.
        """
        shown = chosen_progress(progress)
        self.listeners += [shown] if shown else []
        try:
            for _ in self.rounds():
                pass
        finally:
            if shown:
                shown.close()
                self.listeners.remove(shown)
        return self.summary()

    def __repr__(self) -> str:
        facts = self._facts()
        return f"Experiment({', '.join(f'{name}: {value}' for name, value in facts.items() if value is not None)})"

    def _repr_html_(self) -> str:
        return html_facts(f"Experiment: {self.method_class.title}", self._facts())

    def _facts(self) -> dict[str, Any]:
        """Returns the facts of displays; does not need the state, which takes memory."""
        done = self.records[-1]["round"] if self.records else 0
        accuracies = (record.get(name) for record in reversed(self.records) for name in TEST_ACCURACIES)
        return {
            "method": self.method_name,
            "data": f"{self.dataset.name} ({self.dataset.source}), {self.data.clients} clients",
            "model": self.settings.model,
            "rounds": f"{done} of {self.settings.rounds}",
            "accuracy": next((f"{value:.4f}" for value in accuracies if value is not None), None),
            "out": self.folder,
        }

    def summary(self) -> dict[str, Any]:
        """Returns best, last and mean of the last five of each accuracy over the finished rounds."""
        return summarise_run(self.records, self.bests, self.describe())

    def result_settings(self) -> dict[str, Any]:
        """Returns all settings and options that determine the results; a resumed run must have the same."""
        left_out = {*config.NOT_IN_RESULTS, "partition"}  # its hash tells more than its name
        settings = {name: value for name, value in asdict(self.settings).items() if name not in left_out}
        about = {"method": self.method_name, "data": self.dataset.source, "partition_hash": self.partition.hash}
        if self.dataset.source == IMPORTED:
            about["data_hash"] = self._data_hash or content_hash(self.dataset)
        options = {name: plain(value) for name, value in asdict(self.options).items()}
        return {**about, **settings, **options}

    def memory(self) -> Estimate:
        """Returns the estimated main memory of the run, computed on first use."""
        if self._memory is None:
            s, executor = self.settings, self.round.executor
            workers = len(executor.workers)
            units = executor.units(self.round.shards.own(self.round.cohort(1).training))
            tested = [*units, *executor.test_units(range(self.data.clients))]
            together, tested_together = (
                workers * max((len(unit) for unit in found), default=1) for found in (units, tested)
            )
            with self._chosen_ops():
                self._memory = estimate(
                    self.part_table,
                    self.method,
                    self.data,
                    s,
                    together,
                    tested_together,
                    on_disk=s.state == "disk",
                    on_gpu=executor.workers[0].device.type == "cuda",
                )
        return self._memory

    def config_text(self) -> str:
        """Returns every setting and option as TOML, see :mod:`pfl_fast.config`."""
        known = self.method_name in METHODS and METHODS[self.method_name] is self.method_class
        own = self._named_method or described(f"{self.method_class.__module__}:{self.method_name}")
        method = self.method_name if known else own
        return config.dumps(method, self.settings, asdict(self.options))

    def describe(self) -> dict[str, Any]:
        """Returns a description of the run for result files."""
        return {
            "method": self.method_name,
            "dataset": self.dataset.name,
            "data": self.dataset.source,
            "model": self.settings.model,
            "clients": self.data.clients,
            "partition": self.partition.rule,
            "partition_hash": self.partition.hash,
            "batch_norm": self.part_table.batch_norm,
            "executor": self.round.executor.name,
            "seed": self.settings.seed,
        }

    @property
    def method_name(self) -> str:
        """Name of the method on the command line."""
        return assembly.method_name(self.method_class)

    def client(self, client: int | str) -> ClientModel:
        """Returns the current model of a client: a module from a batch of samples to logits.

        Args:
            client: number of the client, or its name in ``client_names``.
        """
        number = self.client_number(client)
        if not self.has_data and self.adapts_before_tests:
            raise ConfigError(
                f"{self.method.title} adapts a model to its client's samples before it predicts: "
                "Experiment.load(folder, data=True) loads them"
            )
        self._check_held(number)
        return ClientModel(self.method, self.part_table, self.round.evaluation_tensors(number))

    def _check_held(self, number: int) -> None:
        owner, rounds = self.round.shards.owner[number], self.round
        if self.ranks.rank not in (owner, 0 if rounds.state.rounds_done == rounds.last_round else owner):
            raise ValueError(f"client {number} belongs to rank {owner}; after the last round rank 0 has all clients")

    def test(self, clients: Iterable[int] | None = None) -> Scores:
        """Returns the scores of clients, by default all, on their own samples, by client and split."""
        if not self.has_data:
            raise ConfigError("a test needs the samples of the clients: Experiment.load(folder, data=True)")
        chosen = range(self.data.clients) if clients is None else list(clients)
        for client in chosen:
            self._check_held(client)
        with self._chosen_ops(), arithmetic(self.settings.precision, self.settings.deterministic):
            return self.round.test_now(chosen)

    def client_number(self, client: int | str) -> int:
        """Returns the number of a client from its number or name."""
        if client in self.client_names:
            return self.client_names.index(str(client))
        number = int(client) if str(client).isdecimal() else client
        if isinstance(number, str):
            hint = did_you_mean(number, self.client_names) or f"; there is {', '.join(self.client_names[:20])}"
            raise ConfigError(f"client: no client {number!r}{hint}")
        if not 0 <= number < self.data.clients:
            kind = ConfigError if isinstance(client, str) else ValueError
            raise kind(f"client must be from 0 to {self.data.clients - 1}, or a client's name, got {number}")
        return number

    @property
    def adapts_before_tests(self) -> bool:
        """True if clients train a copy of their model on their own samples before each test."""
        return bool(self.method.before_test(2, "after_agg"))

    def close(self) -> None:
        """Ends threads and removes temporary files."""
        self._stack.close()
        self._unlock()
        self._round = None

    def _client_done(self, done: int, total: int, report: LocalReport) -> None:
        for listener in self.listeners:
            listener.client_done(self.round.state.rounds_done + 1, done, total, report)

    def _observer(self) -> Observer | None:
        asking = [
            listener for listener in self.listeners if type(listener).client_trained is not Listener.client_trained
        ]
        if not asking:
            return None
        lock = Lock()  # workers call from their threads

        def observe(round: int, client: int, tensors: Tensors, upload: Tensors) -> None:
            with lock:
                for listener in asking:
                    listener.client_trained(round, client, tensors, upload)

        return observe

    def _keep(self, record: RoundRecord) -> dict[str, Any]:
        record.values["data"] = self.dataset.source
        self.records.append(record.values)
        keep_bests(self.bests, record)
        self._tell("round_done", record)
        return record.values
