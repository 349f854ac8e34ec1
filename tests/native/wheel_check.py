"""Installs a wheel into new environments without a compiler, loads its library and trains: ``make wheel-test``.

    python -m tests.native.wheel_check dist/pfl_fast-*.whl [torch==2.13.0 torch ...]

The arguments after the wheel are torch requirements, one environment each; by default the oldest supported torch and
the newest. The sdist next to the wheel is checked as well.
"""

import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from zipfile import ZipFile

from pfl_fast.native import build

USE = """
import json, sys
from importlib.util import find_spec
import torch
from pfl_fast import ops
from pfl_fast.native import build
print(json.dumps({
    "native": ops.uses_native(),
    "problem": ops.NATIVE.problem,
    "folder": str(ops.NATIVE.folder),
    "result": ops.aggregate(torch.ones(2, 3), torch.ones(2)).tolist(),
    "compiler": build.find_compiler(),
    "torch": torch.__version__,
    "torchvision": find_spec("torchvision") is not None,
}))
"""


def run_without_compiler(command, home, path, **environment):
    """Runs a command with only the folder ``path`` on PATH, a cache in ``home`` and no other environment variables."""
    settings = {"PATH": str(path), "HOME": str(home), "PFL_FAST_CACHE": str(home / "cache")}
    return subprocess.run(
        list(map(str, command)), env={**settings, **environment}, cwd=home, capture_output=True, text=True, check=False
    )


def check_library(python, site_packages, home, path, **environment):
    """Checks that the installed library is loaded and that nothing is compiled; returns the facts printed by USE."""
    result = run_without_compiler([python, "-c", USE], home, path, **environment)
    assert result.returncode == 0, result.stderr
    facts = json.loads(result.stdout)
    assert facts["native"], facts["problem"]
    assert facts["compiler"] is None, "the check needs an environment without a compiler"
    assert facts["folder"] == str(site_packages / "pfl_fast" / "native" / "lib")
    assert facts["result"] == [2.0, 2.0, 2.0]
    check_nothing_compiled(home)
    return facts


def check_nothing_compiled(home):
    """Checks that the cache has neither object files nor a library."""
    assert not (home / "cache" / "native").exists(), sorted(home.rglob("cache/native/**/*"))


def check_environment(wheel, requirement, home):
    """Installs the wheel and one torch, then runs doctor and one round of training."""
    print(f"== {requirement}: installing", flush=True)
    venv.create(home / "venv", with_pip=True)
    programs = home / "venv" / "bin"
    subprocess.run([programs / "python", "-m", "pip", "install", "-q", requirement, wheel], check=True)
    (site_packages,) = (home / "venv" / "lib").glob("python3*/site-packages")
    facts = check_library(programs / "python", site_packages, home, programs)
    assert not facts["torchvision"], "the check needs an environment without torchvision"

    doctor = run_without_compiler([programs / "pfl-fast", "doctor", "--json"], home, programs)
    assert doctor.returncode == 0, doctor.stderr
    kernels = json.loads(doctor.stdout)["facts"]["kernels"]
    assert kernels["CPU"], doctor.stdout
    training = ["train", "fedcp", "--dataset", "digits", "--rounds", "1", "--device", "cpu", "--quiet"]
    trained = run_without_compiler([programs / "pfl-fast", *training], home, programs)
    assert trained.returncode == 0, trained.stderr
    check_nothing_compiled(home)
    print(f"   torch {facts['torch']}, kernels: CPU {kernels['CPU']}, CUDA {kernels['CUDA']}; nothing was compiled")
    print(f"   {trained.stdout.strip()}", flush=True)


def check_sdist(sdist, wheel, folder):
    """Checks that a wheel of the sdist, built without torch, has the files of ``wheel`` except for the library."""
    print(f"== {sdist.name}: building a wheel without torch", flush=True)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, sdist]
    subprocess.run(command, check=True)
    (built,) = folder.glob("*.whl")
    library = {f"pfl_fast/native/lib/{name}" for name in (build.LIBRARY, build.INFO)}
    assert package_files(wheel) - package_files(built) == library
    assert package_files(built) <= package_files(wheel)


def package_files(wheel):
    """Returns the names of the package's files in a wheel."""
    names = ZipFile(wheel).namelist()
    return {name for name in names if name.startswith("pfl_fast/") and not name.endswith("/")}


def main(wheel, *requirements):
    wheel = Path(wheel).resolve()
    assert "-py3-none-manylinux_" in wheel.name, wheel.name
    (sdist,) = wheel.parent.glob("*.tar.gz")
    with tempfile.TemporaryDirectory() as folder:
        check_sdist(sdist, wheel, Path(folder))
    oldest = f"torch=={'.'.join(map(str, build.TORCH_TARGET))}.0"
    for requirement in requirements or (oldest, "torch"):
        with tempfile.TemporaryDirectory() as folder:
            check_environment(wheel, requirement, Path(folder).resolve())


if __name__ == "__main__":
    main(*sys.argv[1:])
