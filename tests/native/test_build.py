"""Tests of build plans, compiler flags and compiled objects."""

import platform
import subprocess

import pytest

from pfl_fast.native import build

needs_compiler = pytest.mark.skipif(build.find_compiler() is None, reason="needs a C++ compiler")


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    for name in ("WITH_CUDA", "TORCH_CUDA_ARCH_LIST", "DEBUG", "CXX", "CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def fake_nvcc(tmp_path, monkeypatch):
    """Fake nvcc that lists three architectures and fails to compile."""
    folder = tmp_path / "cuda" / "bin"
    folder.mkdir(parents=True)
    nvcc = folder / "nvcc"
    nvcc.write_text(
        '#!/bin/sh\ncase "$1" in\n'
        '--list-gpu-arch) printf "compute_75\\ncompute_80\\ncompute_90\\n";;\n'
        '--version) echo "release 99.0";;\n*) echo "host compiler too new" >&2; exit 1;;\nesac\n'
    )
    nvcc.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    return str(nvcc)


@needs_compiler
def test_cuda_follows_nvcc_and_torch_never_a_gpu(fake_nvcc, monkeypatch):
    assert build.make_plan(torch_has_cuda=True).nvcc == fake_nvcc
    assert build.make_plan(torch_has_cuda=False).nvcc is None
    monkeypatch.setenv("WITH_CUDA", "1")
    assert build.make_plan(torch_has_cuda=False).nvcc == fake_nvcc
    monkeypatch.setenv("WITH_CUDA", "0")
    assert build.make_plan(torch_has_cuda=True).nvcc is None


@needs_compiler
@pytest.mark.usefixtures("fake_nvcc")
def test_default_architectures_are_those_nvcc_knows():
    assert build.make_plan(True).architectures == ("7.5", "8.0", "9.0+PTX")


@needs_compiler
@pytest.mark.usefixtures("fake_nvcc")
@pytest.mark.parametrize("listed", ["8.0;9.0+PTX", "8.0 9.0+PTX"])
def test_architectures_can_be_listed(monkeypatch, listed):
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", listed)
    plan = build.make_plan(True)
    assert build.gencode_flags(plan.architectures) == [
        "-gencode=arch=compute_80,code=sm_80",
        "-gencode=arch=compute_90,code=sm_90",
        "-gencode=arch=compute_90,code=compute_90",
    ]


def test_errors_name_the_variable_and_the_remedy(monkeypatch):
    with pytest.raises(build.BuildError, match=r"TORCH_CUDA_ARCH_LIST must look like '8\.0;9\.0\+PTX', got 'Ampere'"):
        build.gencode_flags(("Ampere",))
    monkeypatch.setenv("WITH_CUDA", "yes")
    monkeypatch.setenv("CXX", "sh")
    with pytest.raises(build.BuildError, match="WITH_CUDA must be 0 or 1, got 'yes'"):
        build.make_plan(True)
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(build.BuildError, match=r"no C\+\+ compiler found: install g\+\+"):
        build.make_plan(True)


def test_source_hash_follows_the_sources(tmp_path):
    (tmp_path / "emulation").mkdir()
    (tmp_path / "a.cpp").write_text("int a;")
    before = build.source_hash(tmp_path)
    (tmp_path / "emulation" / "runtime.cpp").write_text("tests only")
    assert build.source_hash(tmp_path) == before
    (tmp_path / "a.cpp").write_text("int b;")
    assert build.source_hash(tmp_path) != before


@needs_compiler
def test_default_build_is_portable():
    """No flag depends on the build machine; only kernels chosen at run time use AVX."""
    plan = build.Plan(cxx="c++", nvcc=None, architectures=(), debug=False)
    text = build.ninja_file(build.source_folder(), plan, build.Path("torch"))
    assert "native" not in text.replace(build.LIBRARY, "")
    rule = next(line for line in text.splitlines() if line.startswith("  command = c++"))
    assert "-mavx" not in rule


@needs_compiler
@pytest.mark.skipif(platform.machine() != "x86_64", reason="needs x86-64")
@pytest.mark.parametrize("source", sorted(build.source_folder().glob("cpu/*_kernel.cpp")), ids=lambda file: file.stem)
def test_vector_code_cannot_leak_into_shared_functions(source, tmp_path):
    """AVX objects have no weak symbols: the linker might keep their copy for all processors."""
    folder = build.source_folder()
    flags = [*build.COMMON_FLAGS, *build.CAPABILITY_FLAGS["avx512"], "-DPFL_CAPABILITY=avx512", "-O0"]
    compiler = build.find_compiler()
    command = [compiler, *flags, f"-I{folder}", f"-I{folder / 'cpu'}", "-c", source, "-o", tmp_path / "kernel.o"]
    subprocess.run(list(map(str, command)), check=True)
    symbols = subprocess.run(["nm", tmp_path / "kernel.o"], capture_output=True, text=True, check=True).stdout
    assert [line for line in symbols.splitlines() if line.split()[-2] in "WVu"] == []
