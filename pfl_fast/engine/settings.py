"""Settings of the rounds: everything here changes results, and goes into the checkpoint."""

from __future__ import annotations

from dataclasses import dataclass

from pfl_fast.options import option


@dataclass(frozen=True)
class RoundSettings:
    """How rounds are run and measured."""

    rounds: int = option(100, "rounds of local training and aggregation", minimum=1)
    local_epochs: int = option(1, "passes over a client's samples in a round", minimum=1)
    lr: float = option(0.005, "learning rate", minimum=0)
    lr_decay: float = option(1.0, "the learning rate is multiplied by it after each round", minimum=0, maximum=1)
    momentum: float = option(0.0, "of SGD", minimum=0, maximum=0.9999)
    weight_decay: float = option(0.0, "of SGD", minimum=0)
    keep_momentum: bool = option(False, "a client keeps its momentum between rounds instead of starting from zero")
    join_ratio: float = option(1.0, "share of clients in a round", minimum=0, maximum=1)
    random_join: bool = option(False, "draw the number of clients anew in each round, between join_ratio and all")
    client_dropout: float = option(0.0, "share of clients lost after training, before upload", minimum=0, maximum=1)
    broadcast_to_all: bool = option(False, "all clients receive after each round, not only the selected ones")
    train_all: bool = option(False, "all clients train in every round, only the selected ones are averaged")
    batch_norm: str = option(
        "auto",
        "what of BatchNorm is exchanged: all, all but running statistics, nothing; auto: as the method has it",
        ["auto", "shared", "params_shared_buffers_local", "personal"],
    )
    seed: int = option(0, "of every draw", minimum=0)
    on_nan: str = option(
        "stop",
        "when a client's loss or parameters are not finite: stop, skip the client in this round, or report and go on",
        ["stop", "skip", "report"],
    )
    eval_every: int = option(1, "rounds from one evaluation to the next; the last round is always evaluated", minimum=1)
    eval_at: str = option(
        "both", "when clients are tested: after aggregation, after local training", ["both", "after_agg", "after_local"]
    )
    eval_clients: str = option("all", "who is tested after aggregation", ["all", "selected"])
    eval_global: bool = option(True, "test the server's model, too, on all clients' samples, where there is one")
    eval_initial: bool = option(False, "test the untrained model too, as round 0")
    metrics: tuple[str, ...] = option(
        (),
        "further metrics of the tests: balanced_accuracy, macro_f1, per_class_accuracy, or a function (logits, labels) "
        "of yours as module:function; accuracy, loss and auc are always computed",
    )
    drop_last_test: bool = option(False, "leave out test samples beyond a multiple of the batch size")
    dtype: str = option("float32", "of parameters and arithmetic", ["float32", "float64"])
