"""``pfl-fast doctor``: checks the installation and suggests fixes."""

from __future__ import annotations

import json
import platform
import sys
import warnings
from contextlib import closing
from dataclasses import asdict, dataclass, field
from typing import Any

import click

from pfl_fast import __version__
from pfl_fast.native import build
from pfl_fast.paths import cache_folder, data_folder


@dataclass
class Diagnosis:
    """State of the installation: facts by section and name, suggestions, and whether training works."""

    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    suggestions: list[str] = field(default_factory=list)
    can_train: bool = True


@click.command()
@click.option("--json", "as_json", is_flag=True, help="print one JSON object instead of a page")
def doctor(as_json: bool) -> None:
    """Check the installation and suggest fixes.

    Trains one small round with the default settings; exits with 0 if that succeeds, else with 1.

    \b
    Examples:
      pfl-fast doctor
      pfl-fast doctor --json | python -m json.tool
    """
    diagnosis = diagnose()
    click.echo(json.dumps(asdict(diagnosis), indent=2) if as_json else as_page(diagnosis))
    sys.exit(0 if diagnosis.can_train else 1)


def diagnose() -> Diagnosis:
    """Inspects this machine. Never raises: each failure becomes a suggestion."""
    result = Diagnosis()
    cxx, torch_cuda = build.find_compiler(), None
    versions: dict[str, Any] = {"pfl-fast": __version__, "python": platform.python_version()}
    result.facts["versions"] = versions
    result.facts["folders"] = {"data": str(data_folder()), "cache": str(cache_folder())}
    try:
        import torch
    except (ImportError, OSError) as error:
        versions["torch"] = None
        result.can_train = False
        result.suggestions.append(f"torch cannot be imported ({error}): pip install torch")
    else:
        versions["torch"], torch_cuda = torch.__version__, torch.version.cuda
        versions["torchvision"] = _torchvision_version(result)
    versions["compiler"] = build.version_line(cxx) if cxx else None
    nvcc = build.find_nvcc(torch_cuda)
    versions["nvcc"] = build.version_line(nvcc) if nvcc else None
    if cxx is None:
        result.suggestions.append(
            "no C++ compiler found: apt-get install g++, or set CXX; the plain-torch operators are slower"
        )
    if versions["torch"]:
        _check_native(result)
        _check_devices(result)
        _check_training(result)
    return result


def _torchvision_version(result: Diagnosis) -> str | None:
    try:
        import torchvision
    except (ImportError, RuntimeError, OSError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        result.suggestions.append(
            f"torchvision cannot be imported ({reason}): pip install torchvision; only its models need it"
        )
        return None
    return str(torchvision.__version__)


def _check_native(result: Diagnosis) -> None:
    import torch

    from pfl_fast.ops import NATIVE

    native = {
        "CPU": torch.ops.pfl_fast.cpu_capability() if NATIVE.available else None,
        "CUDA": " ".join(NATIVE.info.architectures) or None if NATIVE.info else None,
    }
    result.facts["kernels"] = native
    result.facts["folders"]["library"] = str(NATIVE.folder) if NATIVE.folder else None
    if NATIVE.problem:
        result.suggestions.append(f"the native library is missing: {NATIVE.problem}")
    elif NATIVE.cuda_problem:
        result.suggestions.append(f"{NATIVE.cuda_problem}. Operators run in plain PyTorch on GPUs, which is slower")


def _check_devices(result: Diagnosis) -> None:
    import torch

    gpus = (
        [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    )
    result.facts["devices"] = {
        "CPU": f"{platform.machine()}, torch uses {torch.get_num_threads()} threads",
        "GPUs": gpus or None,
    }
    if not gpus and torch.version.cuda:
        result.suggestions.append(
            "no GPU found: training runs on the CPU; if there is a GPU, check its driver (nvidia-smi)"
        )


def _check_training(result: Diagnosis) -> None:
    from pfl_fast.experiment import Experiment

    try:
        with warnings.catch_warnings(action="ignore"):  # suggestions say the same
            experiment = Experiment(dataset="synthetic", samples=80, clients=2, rounds=1, log=lambda _: None)
            with closing(experiment):
                experiment.run()
                device = experiment.round.device
    except Exception as error:
        result.can_train = False
        result.facts["devices"]["training"] = None
        reason = str(error).strip().split("\n")[0]
        remedy = "; --device cpu trains on the CPU" if result.facts["devices"]["GPUs"] else ""
        result.suggestions.append(f"training fails with {type(error).__name__}: {reason}{remedy}")
    else:
        result.facts["devices"]["training"] = f"one round of FedCP succeeded on {device}"


def as_page(diagnosis: Diagnosis) -> str:
    """Returns the diagnosis as text."""
    lines = []
    for section, facts in diagnosis.facts.items():
        lines.append(click.style(section, bold=True))
        for name, value in facts.items():
            text = ", ".join(value) if isinstance(value, list) else value
            lines.append(f"  {name:13} {'-' if text is None else text}")
    if diagnosis.suggestions:
        lines.append(click.style("suggestions", bold=True))
        lines += [f"  - {text}" for text in diagnosis.suggestions]
    verdict = "Ready to train." if diagnosis.can_train else "Not ready to train."
    return "\n".join([*lines, click.style(verdict, fg="green" if diagnosis.can_train else "red")])
