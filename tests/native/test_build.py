"""Tests of build plans, compiler flags and compiled objects."""

import io
import platform
import subprocess
import sys

import pytest

from pfl_fast.native import build

CPU_KERNELS = sorted(build.source_folder().rglob("*_kernel.cpp"))
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
    assert build.make_plan("99.0").nvcc == fake_nvcc
    assert build.make_plan(None).nvcc is None
    monkeypatch.setenv("WITH_CUDA", "1")
    assert build.make_plan(None).nvcc == fake_nvcc
    monkeypatch.setenv("WITH_CUDA", "0")
    assert build.make_plan("99.0").nvcc is None


@needs_compiler
@pytest.mark.usefixtures("fake_nvcc")
def test_default_architectures_are_those_nvcc_knows():
    assert build.make_plan("99.0").architectures == ("7.5", "8.0", "9.0+PTX")


@needs_compiler
@pytest.mark.usefixtures("fake_nvcc")
@pytest.mark.parametrize("listed", ["8.0;9.0+PTX", "8.0 9.0+PTX"])
def test_architectures_can_be_listed(monkeypatch, listed):
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", listed)
    plan = build.make_plan("99.0")
    assert build.gencode_flags(plan.architectures) == [
        "-gencode=arch=compute_80,code=sm_80",
        "-gencode=arch=compute_90,code=sm_90",
        "-gencode=arch=compute_90,code=compute_90",
    ]


def write_nvcc(folder, release):
    folder.mkdir(parents=True)
    nvcc = folder / "nvcc"
    nvcc.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {release}, V{release}.88'\n")
    nvcc.chmod(0o755)
    return nvcc


@pytest.fixture
def pip_nvcc(tmp_path, monkeypatch):
    """nvcc 13.2, as pip's package nvidia-cuda-nvcc lays it out, and no other."""
    monkeypatch.setattr("shutil.which", lambda path: str(path) if build.Path(path).is_absolute() else None)
    monkeypatch.setattr(build, "SYSTEM_NVCC", "nvcc")
    monkeypatch.syspath_prepend(str(tmp_path / "site-packages"))
    monkeypatch.delitem(sys.modules, "nvidia", raising=False)
    return write_nvcc(tmp_path / "site-packages" / "nvidia" / "cu13" / "bin", "13.2")


def test_nvcc_of_pip_is_found(pip_nvcc):
    assert build.find_nvcc() == str(pip_nvcc)


def test_an_nvcc_that_fits_torch_is_preferred(pip_nvcc, tmp_path, monkeypatch):
    newer = write_nvcc(tmp_path / "cuda" / "bin", "13.4")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    assert build.find_nvcc("13.2") == str(pip_nvcc)
    assert build.find_nvcc("13.4") == str(newer)
    assert build.find_nvcc("13.0") == str(newer), "none fits: the error names the first"


def test_an_nvcc_newer_than_torch_is_refused_with_the_remedy(pip_nvcc, monkeypatch):
    build.check_nvcc(str(pip_nvcc), "13.2")
    remedy = r"release 13\.2.* is newer than torch's CUDA 13\.0;.*pip install 'nvidia-cuda-nvcc==13\.0\.\*'"
    with pytest.raises(build.BuildError, match=remedy):
        build.check_nvcc(str(pip_nvcc), "13.0")
    monkeypatch.setenv("WITH_CUDA", "1")
    build.check_nvcc(str(pip_nvcc), "13.0")


def test_a_cache_key_follows_the_version_of_nvcc(tmp_path):
    old, new = (str(write_nvcc(tmp_path / release, release)) for release in ("13.0", "13.2"))
    keys = {build.cache_key(build.BuildPlan("c++", nvcc, ("9.0",), False), "hash") for nvcc in (old, new, None)}
    assert len(keys) == 3


def test_errors_name_the_variable_and_the_remedy(monkeypatch):
    with pytest.raises(build.BuildError, match=r"TORCH_CUDA_ARCH_LIST must look like '8\.0;9\.0\+PTX', got 'Ampere'"):
        build.gencode_flags(("Ampere",))
    monkeypatch.setenv("WITH_CUDA", "yes")
    monkeypatch.setenv("CXX", "sh")
    with pytest.raises(build.BuildError, match="WITH_CUDA must be 0 or 1, got 'yes'"):
        build.make_plan("99.0")
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(build.BuildError, match=r"no C\+\+ compiler found: install g\+\+"):
        build.make_plan("99.0")


def test_source_hash_follows_the_sources(tmp_path):
    (tmp_path / "emulation").mkdir()
    (tmp_path / "a.cpp").write_text("int a;")
    before = build.source_hash(tmp_path)
    (tmp_path / "emulation" / "runtime.cpp").write_text("tests only")
    assert build.source_hash(tmp_path) == before
    (tmp_path / "a.cpp").write_text("int b;")
    assert build.source_hash(tmp_path) != before


def test_source_hash_follows_the_flags_and_no_path(tmp_path, monkeypatch):
    for name in ("plain", "with space: and $"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.cpp").write_text("int a;")
    before = build.source_hash(tmp_path / "plain")
    assert build.source_hash(tmp_path / "with space: and $") == before
    for name in ("CXX", "TORCH_CUDA_ARCH_LIST", "DEBUG"):
        monkeypatch.setenv(name, "1")
    assert build.source_hash(tmp_path / "plain") == before
    monkeypatch.setattr(build, "EXACT_FLAGS", ())
    assert build.source_hash(tmp_path / "plain") != before


@needs_compiler
def test_default_build_is_portable():
    """No flag depends on the build machine; only kernels chosen at run time use AVX."""
    plan = build.BuildPlan(cxx="c++", nvcc=None, architectures=(), debug=False)
    folder = build.source_folder()
    names = [file.relative_to(folder) for file in build.source_files(folder)]
    text = build.ninja_file(folder, names, plan, build.Path("torch"))
    assert "native" not in text.replace(build.LIBRARY, "")
    rule = next(line for line in text.splitlines() if line.startswith("  command = c++"))
    assert "-mavx" not in rule


@needs_compiler
@pytest.mark.skipif(platform.machine() != "x86_64", reason="needs x86-64")
@pytest.mark.parametrize("source", CPU_KERNELS, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_vector_code_cannot_leak_into_shared_functions(source, tmp_path):
    """AVX objects have no weak symbols: the linker might keep their copy for all processors."""
    folder = build.source_folder()
    flags = [*build.COMMON_FLAGS, *build.CAPABILITY_FLAGS["avx512"], "-DPFL_CAPABILITY=avx512", "-O0"]
    compiler = build.find_compiler()
    command = [compiler, *flags, f"-I{folder}", "-c", source, "-o", tmp_path / "kernel.o"]
    subprocess.run(list(map(str, command)), check=True)
    symbols = subprocess.run(["nm", tmp_path / "kernel.o"], capture_output=True, text=True, check=True).stdout
    weak = [line.split()[-1] for line in symbols.splitlines() if line.split()[-2] in "WVu"]
    assert set(weak) <= {"DW.ref.__gxx_personality_v0"}  # a pointer, the same for every processor


@pytest.fixture
def fake_ninja(tmp_path, monkeypatch):
    """Fake ninja on the path that prints the lines of a file and exits with the code in another."""
    ninja = tmp_path / "ninja"
    ninja.write_text(f"#!/bin/sh\ncat {tmp_path}/lines; exit $(cat {tmp_path}/code)\n")
    ninja.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    def prints(lines, code=0):
        (tmp_path / "lines").write_text(lines)
        (tmp_path / "code").write_text(str(code))
        build.run_ninja(tmp_path / "scratch", "")

    return prints


class Terminal(io.StringIO):
    def isatty(self):
        return True


COMPILED = "[1/3] a.o\na warning [2/3] b.o\n[3/3] libpfl_fast.so\n"


def test_a_log_gets_a_line_for_files_if_one_is_due(fake_ninja, monkeypatch, capsys):
    fake_ninja(COMPILED)
    assert capsys.readouterr().err == "", "a short compilation writes nothing"
    monkeypatch.setattr(build, "LOG_SECONDS", 0)
    fake_ninja(COMPILED)
    first, last = capsys.readouterr().err.splitlines()
    assert first.startswith("pfl-fast: compiled 1 of 3 files, about 0.")
    assert last == "pfl-fast: compiled 3 of 3 files"


def test_a_terminal_gets_one_line_rewritten_in_place(fake_ninja, monkeypatch):
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    fake_ninja(COMPILED)
    assert stream.getvalue().startswith("\rpfl-fast: compiled 1 of 3 files, about 0.0 min left\033[K\r")
    assert stream.getvalue().endswith("\rpfl-fast: compiled 3 of 3 files\033[K\n")


def test_failed_compilation_shows_the_last_30_lines(fake_ninja):
    with pytest.raises(build.BuildError, match="failed:\nline 20\n") as caught:
        fake_ninja("\n".join(f"line {n}" for n in range(50)), code=1)
    assert str(caught.value).endswith("line 49")


def test_old_torch_is_named_with_the_remedy():
    build.check_torch("2.13.0a0+git1")
    build.check_torch("3.0")
    with pytest.raises(build.BuildError, match=r"needs torch 2\.13 or later, got torch 2\.9\.1\+cpu: pip install"):
        build.check_torch("2.9.1+cpu")
