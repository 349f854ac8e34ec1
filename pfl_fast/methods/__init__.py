"""Methods of personalized federated learning, one file each."""

from pfl_fast.methods.apfl import APFL
from pfl_fast.methods.base import Method
from pfl_fast.methods.centralised import Centralised
from pfl_fast.methods.ditto import Ditto
from pfl_fast.methods.fedafk import FedAFK
from pfl_fast.methods.fedala import FedALA
from pfl_fast.methods.fedamp import FedAMP
from pfl_fast.methods.fedavg import FedAvg
from pfl_fast.methods.fedavg_ft import FedAvgFT
from pfl_fast.methods.fedbabu import FedBABU
from pfl_fast.methods.fedbn import FedBN
from pfl_fast.methods.fedcp import FedCP
from pfl_fast.methods.feddyn import FedDyn
from pfl_fast.methods.fedfomo import FedFomo
from pfl_fast.methods.fedios import FediOS
from pfl_fast.methods.fedper import FedPer
from pfl_fast.methods.fedphp import FedPHP
from pfl_fast.methods.fedpick import FedPick
from pfl_fast.methods.fedproto import FedProto
from pfl_fast.methods.fedprox import FedProx
from pfl_fast.methods.fedrep import FedRep
from pfl_fast.methods.fedrod import FedRoD
from pfl_fast.methods.lg_fedavg import LGFedAvg
from pfl_fast.methods.local import Local
from pfl_fast.methods.moon import MOON
from pfl_fast.methods.partialfed_adaptive import PartialFedAdaptive
from pfl_fast.methods.partialfed_fix import PartialFedFix
from pfl_fast.methods.per_fedavg import PerFedAvg
from pfl_fast.methods.pfedme import PFedMe
from pfl_fast.methods.pfedvem import PFedVEM
from pfl_fast.methods.scaffold import Scaffold

METHODS: dict[str, type[Method]] = {
    "apfl": APFL,
    "centralised": Centralised,
    "ditto": Ditto,
    "fedafk": FedAFK,
    "fedala": FedALA,
    "fedamp": FedAMP,
    "fedavg": FedAvg,
    "fedavg-ft": FedAvgFT,
    "fedbabu": FedBABU,
    "fedbn": FedBN,
    "fedcp": FedCP,
    "feddyn": FedDyn,
    "fedfomo": FedFomo,
    "fedios": FediOS,
    "fedper": FedPer,
    "fedphp": FedPHP,
    "fedpick": FedPick,
    "fedproto": FedProto,
    "fedprox": FedProx,
    "fedrep": FedRep,
    "fedrod": FedRoD,
    "lg-fedavg": LGFedAvg,
    "local": Local,
    "moon": MOON,
    "partialfed-adaptive": PartialFedAdaptive,
    "partialfed-fix": PartialFedFix,
    "per-fedavg": PerFedAvg,
    "pfedme": PFedMe,
    "pfedvem": PFedVEM,
    "scaffold": Scaffold,
}

__all__ = ["METHODS", "Method"]
