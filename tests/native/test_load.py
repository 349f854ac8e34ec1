"""A package installed without the library compiles it once on first use and recompiles a damaged one."""

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import pfl_fast
from pfl_fast import ops
from pfl_fast.native import build

USE = """
import torch
from pfl_fast import ops
print(ops.aggregate(torch.ones(2, 3), torch.ones(2)).tolist(), ops.uses_native())
"""
COMPILING = "pfl-fast: compiling the native library"


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """Package as installed by pip without torch: with sources, without the library."""
    folder = tmp_path_factory.mktemp("site-packages")
    source = Path(pfl_fast.__file__).parent
    shutil.copytree(source, folder / "pfl_fast", ignore=shutil.ignore_patterns("lib", "__pycache__"))
    shutil.copytree(build.source_folder(), folder / "pfl_fast" / "csrc", ignore=shutil.ignore_patterns("emulation"))
    return folder


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


def use(package, cache, **environment):
    """Imports and uses the package in a new process; compiles without optimisation, to be fast."""
    settings = {"PYTHONPATH": str(package), "PFL_FAST_CACHE": str(cache), "WITH_CUDA": "0", "DEBUG": "1"}
    return subprocess.run(
        [sys.executable, "-c", USE],
        env={**os.environ, **settings, **environment},
        cwd=package,
        capture_output=True,
        text=True,
        check=True,
    )


@pytest.mark.skipif(build.find_compiler() is None, reason="needs a C++ compiler")
def test_first_use_builds_once_and_recompiles_a_damaged_library(package, cache):
    with ThreadPoolExecutor() as pool:  # two processes at once: one compiles, the other waits
        both = list(pool.map(lambda _: use(package, cache), range(2)))
    assert [r.stdout for r in both] == ["[2.0, 2.0, 2.0] True\n"] * 2
    assert sum(r.stderr.count(COMPILING) for r in both) == 1

    (library,) = [file for file in cache.rglob(build.LIBRARY) if not file.parent.name.startswith("objects-")]
    whole = library.read_bytes()
    assert COMPILING not in use(package, cache).stderr

    library.write_bytes(whole[: len(whole) // 2])  # loading this would crash the process
    for file in cache.rglob("*.o"):
        file.write_bytes(b"damaged as well")
    repaired = use(package, cache)
    assert repaired.stdout == "[2.0, 2.0, 2.0] True\n"
    assert repaired.stderr.count(COMPILING) == 1
    assert len(library.read_bytes()) == len(whole)


def test_without_a_compiler_the_reference_runs_with_one_warning(package, tmp_path):
    result = use(package, tmp_path, CXX="no-such-compiler")
    assert result.stdout == "[2.0, 2.0, 2.0] False\n"
    assert result.stderr.count("RuntimeWarning") == 1
    assert "no C++ compiler found: install g++" in result.stderr


@pytest.mark.skipif(not ops.NATIVE.available, reason="needs the native library")
def test_given_library_is_loaded_or_refused(package, tmp_path):
    given = use(package, tmp_path, PFL_FAST_LIBRARY=str(ops.NATIVE.folder))
    assert given.stdout == "[2.0, 2.0, 2.0] True\n"
    assert given.stderr == ""
    refused = use(package, tmp_path, PFL_FAST_LIBRARY=str(tmp_path))
    assert refused.stdout == "[2.0, 2.0, 2.0] False\n"
    assert f"PFL_FAST_LIBRARY={tmp_path} holds no library compiled from these sources" in refused.stderr


def test_unwritable_cache_is_named(package, tmp_path):
    (tmp_path / "file").write_text("in the way")
    result = use(package, tmp_path / "file")
    assert result.stdout == "[2.0, 2.0, 2.0] False\n"
    assert str(tmp_path / "file") in result.stderr


@pytest.mark.skipif(build.find_compiler() is None, reason="needs a C++ compiler")
def test_failing_nvcc_leaves_the_cpu_kernels(package, tmp_path):
    nvcc = tmp_path / "cuda" / "bin" / "nvcc"
    nvcc.parent.mkdir(parents=True)
    nvcc.write_text("#!/bin/sh\necho 'unsupported host compiler' >&2\nexit 1\n")
    nvcc.chmod(0o755)
    code = (
        "import torch; torch.version.cuda = '99.0'\n"
        "from pfl_fast import ops\n"
        "print(ops.uses_native(), ops.NATIVE.info.architectures, 'unsupported host' in ops.NATIVE.info.cuda_problem)"
    )
    settings = {"PYTHONPATH": str(package), "PFL_FAST_CACHE": str(tmp_path), "CUDA_HOME": str(tmp_path / "cuda")}
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **settings, "WITH_CUDA": "", "DEBUG": "1", "TORCH_CUDA_ARCH_LIST": "9.0"},
        cwd=package,
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout == "True [] True\n"
    assert "only the CPU kernels are compiled" in result.stderr
