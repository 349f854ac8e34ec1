"""PartialFed-Fix: clients upload all tensors and load only a fixed part of the average.

Symbols as in the paper; client c, round t, groups g of tensors, including BatchNorm's running statistics:

    W_init[g] = W_t[g]        where the strategy A[g] = 1
                W_{t-1}^c[g]  where A[g] = 0
    W_t^c  = W_init after local training, kept and uploaded
    W_{t+1} = sum_c (n_c / n) W_t^c

After the last round each client fine-tunes W_init. The strategies are those of
:mod:`pfl_fast.methods.partialfed_strategies`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pfl_fast.errors import ConfigError
from pfl_fast.methods.base import CHOSEN, Method, RunContext
from pfl_fast.methods.papers import PARTIALFED
from pfl_fast.methods.partialfed_strategies import Selector, loaded
from pfl_fast.methods.parts import Part, shared
from pfl_fast.models import Backbone, batch_norm_tensors
from pfl_fast.options import option

PAPER = "Sun et al., PartialFed: Cross-Domain Personalized Federated Learning via Partial Initialization, NeurIPS 2021"
# A learning rate of 0.1, that of ResNet-18 on other data, makes the loss rise in the fine-tune.
FINETUNE: Mapping[str, Any] = {"finetune_epochs": 5, "finetune_lr": 0.01}


@dataclass(frozen=True)
class PartialFedFixOptions:
    """Options of PartialFed-Fix; the default strategy is the paper's best."""

    strategy: str | Selector = option(  # noqa: RUF009 returns a field
        "wo_bn_fc",
        "tensors to load from the global model: full, s1 to s1-s4, fc, s4-fc to s2-fc, wo_bn, wo_bn_fc, blocks such as "
        "AaBb, wo_se, wo_se_bn, wo_fb, wo_fb_tb, or module:function",
    )


class PartialFedFix(Method):
    """All tensors are averaged; clients load a fixed part of them."""

    title = "PartialFed-Fix"
    paper = PAPER
    summary = "all tensors are averaged; each client loads only a fixed part of them"
    family = CHOSEN
    reading = (
        "Eq. 3 as its sentence says, not its formula: all tensors except the head are global. Not stated in the paper "
        "and guessed: a final fine-tune of 5 epochs at 0.01"
    )
    public_code = "no public code is known"
    Options = PartialFedFixOptions
    own_paper = PARTIALFED

    @classmethod
    def defaults(cls, model: str, dataset: str) -> Mapping[str, Any]:
        """Returns the settings of the data set, and those of the final fine-tune."""
        return {**super().defaults(model, dataset), **FINETUNE}

    def __init__(self, options: PartialFedFixOptions, context: RunContext) -> None:
        refuse_personal_batch_norm("partialfed-fix", context)
        super().__init__(options, context)

    def parts(self, backbone: Backbone) -> dict[str, Part]:
        """Returns extractor and head; tensors that the strategy does not load are only uploaded."""
        not_loaded = set(backbone.state_dict()) - loaded(self.options.strategy, backbone)

        def part(name: str) -> Part:
            prefix = name + "."
            upload_only = [tensor.removeprefix(prefix) for tensor in not_loaded if tensor.startswith(prefix)]
            return shared(backbone.get_submodule(name), name, upload_only=upload_only)

        return {"extractor": part("extractor"), "head": part("head")}


def refuse_personal_batch_norm(method: str, context: RunContext) -> None:
    """Raises if BatchNorm is not uploaded: the server would have an untrained one."""
    if context.batch_norm != "shared" and context.backbone is not None and batch_norm_tensors(context.backbone):
        raise ConfigError(
            f"batch_norm: {method} averages all tensors, got {context.batch_norm}, which would leave an untrained "
            "BatchNorm on the server; the option strategy=wo_bn of partialfed-fix keeps the clients' BatchNorm"
        )
