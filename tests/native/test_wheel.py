"""The wheel has all sources and the compiled library, and compiles nothing; ``make wheel-test`` checks more."""

import os
import platform
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from pfl_fast import ops
from pfl_fast.native import build
from tests.native.wheel_check import check_library, package_files, run_without_compiler

ROOT = Path(__file__).resolve().parents[2]
BUILD = "from setuptools import build_meta; build_meta.build_wheel('dist'); build_meta.build_sdist('dist')"
needs_library = pytest.mark.skipif(not ops.NATIVE.available, reason="needs the native library")


def copy_tree(folder):
    """Copies the files that packaging reads, without compiled libraries, into ``folder``."""
    for name in ("pfl_fast", "csrc"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("lib", "__pycache__"))
    for name in ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    return folder


def build_archives(tree, program=BUILD, **environment):
    """Builds wheel and sdist of the folder ``tree``."""
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **environment},
        cwd=tree,
        capture_output=True,
        text=True,
        check=False,
    )


def archive(tree, pattern):
    (file,) = (tree / "dist").glob(pattern)
    return file


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """Copy of this checkout with a wheel of the library already compiled, and an sdist."""
    folder = copy_tree(tmp_path_factory.mktemp("tree"))
    result = build_archives(folder, PFL_FAST_LIBRARY=str(ops.NATIVE.folder))
    assert result.returncode == 0, result.stderr
    return folder


@pytest.fixture(scope="module")
def site_packages(tree, tmp_path_factory):
    """Folder with the wheel installed."""
    folder = tmp_path_factory.mktemp("site packages")
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", folder, archive(tree, "*.whl")]
    subprocess.run(command, check=True)
    return folder


@needs_library
def test_wheel_is_for_every_python_on_this_platform(tree):
    assert archive(tree, "*.whl").name.endswith(f"-py3-none-linux_{platform.machine()}.whl")


@needs_library
def test_wheel_has_every_source_and_the_library(tree):
    names = package_files(archive(tree, "*.whl"))
    csrc = {f"pfl_fast/{f.relative_to(ROOT)}" for f in (ROOT / "csrc").rglob("*") if f.is_file()}
    wanted = {name for name in csrc if "/emulation/" not in name}
    assert {name for name in names if name.startswith("pfl_fast/csrc/")} == wanted
    assert {f"pfl_fast/native/lib/{name}" for name in (build.LIBRARY, build.INFO)} <= names
    assert {"pfl_fast/py.typed", "pfl_fast/recipes/fedcp/table2.toml"} <= names


@needs_library
def test_sdist_has_all_of_csrc(tree):
    with tarfile.open(archive(tree, "*.tar.gz")) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert {str(f.relative_to(ROOT)) for f in (ROOT / "csrc").rglob("*") if f.is_file()} <= names
    assert {"setup.py", "pyproject.toml", "LICENSE", "pfl_fast/native/build.py"} <= names


@needs_library
def test_installed_wheel_compiles_nothing(site_packages, tmp_path):
    """Neither a compiler nor nvcc is on PATH, and the path of the installation has a space."""
    (tmp_path / "empty").mkdir()
    check_library(sys.executable, site_packages, tmp_path, tmp_path / "empty", PYTHONPATH=str(site_packages))


@needs_library
def test_old_torch_is_named_and_the_reference_runs(site_packages, tmp_path):
    program = (
        "import torch; torch.__version__ = '2.12.1+cpu'\n"
        "from pfl_fast import ops\n"
        "print(ops.aggregate(torch.ones(2, 3), torch.ones(2)).tolist(), ops.uses_native())"
    )
    result = run_without_compiler([sys.executable, "-c", program], tmp_path, tmp_path, PYTHONPATH=str(site_packages))
    assert result.stdout == "[2.0, 2.0, 2.0] False\n"
    assert "needs torch 2.13 or later, got torch 2.12.1+cpu: pip install 'torch>=2.13'" in result.stderr


def test_new_source_folders_are_packaged_and_other_libraries_refused(tmp_path):
    tree = copy_tree(tmp_path)
    new = tree / "csrc" / "ops" / "new_op" / "cuda"
    new.mkdir(parents=True)
    (new / "new_op.cuh").touch()
    result = build_archives(tree, PFL_FAST_LIBRARY=str(ops.NATIVE.folder))
    assert "holds no library compiled from these sources" in result.stderr

    result = build_archives(tree, program="import sys; sys.modules['torch'] = None; " + BUILD, PFL_FAST_LIBRARY="")
    assert "the native library will be compiled on first use" in result.stdout
    names = package_files(archive(tree, "*.whl"))
    assert "pfl_fast/csrc/ops/new_op/cuda/new_op.cuh" in names
    assert not any(name.startswith("pfl_fast/native/lib/") for name in names)
