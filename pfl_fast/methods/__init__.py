"""Methods of personalized federated learning, one file each."""

from pfl_fast.methods.base import Method
from pfl_fast.methods.fedavg import FedAvg
from pfl_fast.methods.fedcp import FedCP
from pfl_fast.methods.fedper import FedPer
from pfl_fast.methods.local import Local
from pfl_fast.methods.partialfed_adaptive import PartialFedAdaptive
from pfl_fast.methods.partialfed_fix import PartialFedFix

METHODS: dict[str, type[Method]] = {
    "fedavg": FedAvg,
    "fedcp": FedCP,
    "fedper": FedPer,
    "local": Local,
    "partialfed-adaptive": PartialFedAdaptive,
    "partialfed-fix": PartialFedFix,
}

__all__ = ["METHODS", "Method"]
