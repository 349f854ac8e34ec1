"""Settings of the rounds. All of them determine the results and are saved in checkpoints."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pfl_fast.options import option


@dataclass(frozen=True)
class RoundSettings:
    """Settings of local training, sampling of clients, and tests."""

    rounds: int = option(100, "number of communication rounds", minimum=1)
    local_epochs: int = option(1, "epochs of local training per round", minimum=1)
    lr: float = option(0.005, "learning rate", minimum=0)
    lr_schedule: str = option(
        "exponential",
        "learning rate by round: times lr_decay after each round (exponential), or after the rounds lr_steps (steps); "
        "or falling to 0 along a cosine",
        ["exponential", "steps", "cosine"],
    )
    lr_decay: float = option(
        1.0, "factor of the learning rate after each round, or after the rounds lr_steps", minimum=0, maximum=1
    )
    lr_steps: tuple[int, ...] = option((), "rounds after which lr_schedule=steps multiplies by lr_decay", minimum=1)
    lr_warmup: int = option(0, "first rounds, in which the learning rate rises linearly", minimum=0)
    finetune_epochs: int = option(
        0, "epochs of a fine-tune of every client after the last round, for methods without one of their own", minimum=0
    )
    finetune_lr: float | None = option(
        None, "learning rate of the fine-tune after the last round; none: that of the round after the last", minimum=0
    )
    momentum: float = option(0.0, "SGD momentum", minimum=0, maximum=0.9999)
    weight_decay: float = option(0.0, "SGD weight decay", minimum=0)
    keep_momentum: bool = option(False, "keep each client's momentum between rounds instead of starting from zero")
    join_ratio: float = option(1.0, "fraction of clients per round", minimum=0, maximum=1)
    random_join: bool = option(False, "draw the fraction of clients of each round between join_ratio and 1")
    client_dropout: float = option(
        0.0, "fraction of the selected clients that train but do not upload", minimum=0, maximum=1
    )
    broadcast_to_all: bool = option(False, "send the server's model to all clients after each round")
    train_all: bool = option(False, "train all clients in every round, average only the selected ones")
    batch_norm: str = option(
        "auto",
        "BatchNorm tensors to exchange: all (shared), all but running statistics, or none (personal); auto: the "
        "method's default",
        ["auto", "shared", "params_shared_buffers_local", "personal"],
    )
    seed: int = option(0, "random seed of the run", minimum=0)
    on_nan: str = option(
        "stop",
        "if a client's loss or parameters are not finite: stop the run, skip the client in this round, or only report",
        ["stop", "skip", "report"],
    )
    eval_every: int = option(1, "number of rounds between evaluations; the last round is always evaluated", minimum=1)
    eval_at: str = option(
        "both", "test clients after aggregation, after local training, or both", ["both", "after_agg", "after_local"]
    )
    eval_clients: str = option(
        "all", "clients to test after aggregation: all, or those selected for the round", ["all", "selected"]
    )
    eval_global: bool = option(True, "test the server's model on the test samples of all clients, if there is one")
    eval_initial: bool = option(False, "test the untrained model as round 0")
    metrics: tuple[str, ...] = option(
        (),
        "metrics besides accuracy, loss and auc: balanced_accuracy, macro_f1, per_class_accuracy, or your own function "
        "(logits, labels) as module:function",
    )
    drop_last_test: bool = option(False, "drop the last test batch if it is incomplete")
    dtype: str = option("float32", "data type of parameters and arithmetic", ["float32", "float64"])
    precision: str = option(
        "highest",
        "arithmetic of float32 products: float32 (highest), TF32 tensor cores of GPUs (tf32) or bfloat16 (bf16)",
        ["highest", "tf32", "bf16"],
    )
    deterministic: bool = option(False, "deterministic algorithms only: GPUs repeat a run to the bit")

    @property
    def depends_on_rounds(self) -> bool:
        """True if the learning rate depends on the number of rounds, so that rounds cannot be added to a run."""
        return self.lr_schedule == "cosine"

    def learning_rate(self, round: int) -> float:
        """Returns the learning rate of a round, from 1; the round after the last is the final fine-tune.

        >>> settings = RoundSettings(rounds=4, lr=1.0, lr_schedule="steps", lr_steps=(2,), lr_decay=0.1, lr_warmup=2)
        >>> [settings.learning_rate(round) for round in (1, 2, 3, 4)]
        [0.5, 1.0, 0.1, 0.1]
        """
        if round > self.rounds and self.finetune_lr is not None:
            return self.finetune_lr
        if self.lr_schedule == "cosine":  # the round after the last has the rate of the last, which is not 0
            factor = (1 + math.cos(math.pi * (min(round, self.rounds) - 1) / self.rounds)) / 2
        elif self.lr_schedule == "steps":
            factor = self.lr_decay ** sum(round > step for step in self.lr_steps)
        else:
            factor = self.lr_decay ** (round - 1)
        return self.lr * factor * (min(1.0, round / self.lr_warmup) if self.lr_warmup else 1.0)
