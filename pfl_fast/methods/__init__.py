"""Methods of personalized federated learning, one file each."""

from pfl_fast.methods.base import Method
from pfl_fast.methods.fedafk import FedAFK
from pfl_fast.methods.fedavg import FedAvg
from pfl_fast.methods.fedbn import FedBN
from pfl_fast.methods.fedcp import FedCP
from pfl_fast.methods.fedios import FediOS
from pfl_fast.methods.fedper import FedPer
from pfl_fast.methods.fedpick import FedPick
from pfl_fast.methods.local import Local
from pfl_fast.methods.partialfed_adaptive import PartialFedAdaptive
from pfl_fast.methods.partialfed_fix import PartialFedFix

METHODS: dict[str, type[Method]] = {
    "fedafk": FedAFK,
    "fedavg": FedAvg,
    "fedbn": FedBN,
    "fedcp": FedCP,
    "fedios": FediOS,
    "fedper": FedPer,
    "fedpick": FedPick,
    "local": Local,
    "partialfed-adaptive": PartialFedAdaptive,
    "partialfed-fix": PartialFedFix,
}

__all__ = ["METHODS", "Method"]
