"""Compiles ``csrc`` into one shared library on LibTorch's stable ABI.

``setup.py`` and the build on first use share this module. No GPU is needed, and only the standard library is imported
until a build starts.

Environment variables:

- ``CXX``, ``CUDA_HOME``: compilers; by default the first ``c++``/``g++``/``clang++`` and ``nvcc`` found.
- ``WITH_CUDA=0|1``: never or always compile CUDA kernels; by default if torch is built with CUDA and an nvcc is found
  that is not newer than torch's CUDA.
- ``TORCH_CUDA_ARCH_LIST``: for example ``"8.0;9.0+PTX"``; by default :data:`DEFAULT_ARCHITECTURES`.
- ``DEBUG=1``: no optimisation, debug symbols.
- ``MAX_JOBS``: number of files compiled at the same time; by default ninja decides.
- ``PFL_FAST_LIBRARY``: folder of a library already compiled from these sources, to load; ``setup.py`` copies it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from pfl_fast import atomic

LIBRARY = "libpfl_fast.so"
HEADER = Path("common/torch.h")  # precompiled
INFO = "libpfl_fast.json"
TORCH_TARGET = (2, 13)  # oldest torch version whose stable ABI the library supports
LOG_SECONDS = 10.0  # seconds between two lines of progress where stderr is no terminal
SYSTEM_NVCC = "/usr/local/cuda/bin/nvcc"
SOURCE_SUFFIXES = (".h", ".cuh", ".cpp", ".cu")
# Code for 8.0 also runs on 8.6 and 8.9; GPUs newer than 9.0 compile the PTX when they first load it.
DEFAULT_ARCHITECTURES = ("7.5", "8.0", "9.0+PTX")

COMMON_FLAGS = ("-std=c++17", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra")
TARGET_FLAG = f"-DTORCH_TARGET_VERSION={(TORCH_TARGET[0] << 56) | (TORCH_TARGET[1] << 48):#018x}ULL"
# Every product and sum is rounded separately on all instruction sets and in CUDA, unless a kernel calls multiply_add:
# the same bits everywhere. Floating-point exceptions are never read; -fno-trapping-math lets the compiler vectorise
# loops with conditional expressions, such as the clamping in exp_of.
EXACT_FLAGS = ("-ffp-contract=off", "-fno-trapping-math")
CAPABILITY_FLAGS = {
    "baseline": (),
    "avx2": ("-mavx2", "-mfma", "-mf16c"),
    "avx512": (
        *("-mavx2", "-mfma", "-mf16c"),
        *("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mprefer-vector-width=512"),
    ),
}
NVCC_FLAGS = (
    *("-std=c++17", "--fmad=false", "--Werror", "all-warnings", "-Xptxas", "-warn-spills,-warn-lmem-usage"),
    *("-Xcompiler", "-fPIC,-fvisibility=hidden,-Wall,-Wextra"),
)


class BuildError(RuntimeError):
    """The native library could not be compiled; the message names the cause and the remedy."""


@dataclass(frozen=True)
class BuildPlan:
    """Compilers and settings of a build. Equal plans and equal sources give interchangeable libraries."""

    cxx: str
    nvcc: str | None
    architectures: tuple[str, ...]
    debug: bool

    @property
    def cuda(self) -> bool:
        """True if CUDA kernels are compiled."""
        return self.nvcc is not None


@dataclass(frozen=True)
class BuildInfo:
    """Description of a compiled library, stored as JSON in its folder."""

    sources: str
    sha256: str
    architectures: list[str]
    compiler: str
    nvcc: str | None
    torch: str
    cuda_problem: str | None = None

    @staticmethod
    def read(folder: Path) -> BuildInfo | None:
        """Returns the info in ``folder``, or None if it is missing or invalid."""
        try:
            return BuildInfo(**json.loads((folder / INFO).read_text()))
        except (OSError, ValueError, TypeError):
            return None


def source_folder() -> Path:
    """Returns the folder ``csrc``: next to the package in a checkout, inside the package when installed."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package.parent / "csrc", package / "csrc"):
        if (folder / "library.cpp").is_file():
            return folder
    raise BuildError(f"the C++ sources are missing from {package}: reinstall pfl-fast")


def source_files(folder: Path) -> list[Path]:
    """Returns all sources of the library; the emulation runtime is for tests only."""
    files = (f for f in folder.rglob("*") if f.suffix in SOURCE_SUFFIXES)
    return sorted(f for f in files if "emulation" not in f.relative_to(folder).parts)


def source_hash(folder: Path) -> str:
    """Returns a hash of all sources and command lines; paths, compilers and architectures do not change it."""
    files = source_files(folder)
    names = [file.relative_to(folder) for file in files]
    digest = hashlib.sha256()
    # Together the two plans have every rule, both linkers and both levels of optimisation.
    for plan in (BuildPlan("c++", "nvcc", ("9.0+PTX",), debug=False), BuildPlan("c++", None, (), debug=True)):
        digest.update(ninja_file(Path("csrc"), names, plan, Path("torch")).encode())
    for name, file in zip(names, files, strict=True):
        digest.update(str(name).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def is_sound(folder: Path, sources: str) -> bool:
    """Returns True if ``folder`` holds an undamaged library of the sources with this hash."""
    info = BuildInfo.read(folder)
    if info is None or info.sources != sources:
        return False
    try:
        return hashlib.sha256((folder / LIBRARY).read_bytes()).hexdigest() == info.sha256
    except OSError:
        return False


def check_library(folder: Path, sources: str) -> None:
    """Raises an error unless ``folder``, from ``PFL_FAST_LIBRARY``, holds a library of the sources with this hash."""
    if not is_sound(folder, sources):
        raise BuildError(f"PFL_FAST_LIBRARY={folder} holds no library compiled from these sources")


def check_torch(version: str) -> None:
    """Raises an error if this version of torch is too old for the library."""
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < TORCH_TARGET:
        needed = ".".join(map(str, TORCH_TARGET))
        raise BuildError(
            f"the native library needs torch {needed} or later, got torch {version}: pip install 'torch>={needed}'"
        )


def find_compiler() -> str | None:
    """Returns the C++ compiler: ``$CXX``, or the first common name on the path."""
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["c++", "g++", "clang++"]
    return next((path for name in names if (path := shutil.which(name))), None)


def find_nvcc(torch_cuda: str | None = None) -> str | None:
    """Returns the CUDA compiler: in ``$CUDA_HOME``, on the path, in ``/usr/local/cuda``, or of pip's package.

    The first one that is not newer than ``torch_cuda``, the CUDA version of torch, else the first one.
    """
    homes = [os.environ.get("CUDA_HOME", ""), os.environ.get("CUDA_PATH", "")]
    places = [f"{home}/bin/nvcc" for home in homes if home] + ["nvcc", SYSTEM_NVCC, *pip_nvccs()]
    found = [path for place in places if (path := shutil.which(place))]
    return next((nvcc for nvcc in found if not is_newer(nvcc, torch_cuda)), found[0] if found else None)


def pip_nvccs() -> list[str]:
    """Returns the places of nvcc in pip's package ``nvidia-cuda-nvcc``, such as ``nvidia/cu13/bin/nvcc``."""
    spec = importlib.util.find_spec("nvidia")
    folders = spec.submodule_search_locations if spec else None
    return [str(file) for folder in folders or () for file in sorted(Path(folder).glob("cu*/bin/nvcc"))]


def install_nvcc(torch_cuda: str) -> str:
    """Returns the remedy for a missing nvcc; all packages need the same version, or ptxas rejects the code of nvvm."""
    version = ".".join(torch_cuda.split(".")[:2])
    if int(version.split(".")[0]) < 13:  # older packages of pip do not contain nvcc
        return f"install nvcc of the CUDA toolkit {version}"
    packages = ("nvidia-cuda-nvcc", "nvidia-nvvm", "nvidia-cuda-crt")
    return "pip install " + " ".join(f"'{package}=={version}.*'" for package in packages)


def is_newer(nvcc: str, torch_cuda: str | None) -> bool:
    """Returns whether nvcc is of a newer CUDA version than torch; False if one of them is unknown."""
    own = re.match(r"(\d+)\.(\d+)", torch_cuda or "")
    release = own and re.search(r"release (\d+)\.(\d+)", version_line(nvcc))
    return bool(own and release and tuple(map(int, release.groups())) > tuple(map(int, own.groups())))


def check_nvcc(nvcc: str, torch_cuda: str | None) -> None:
    """Raises an error if nvcc is newer than torch's CUDA, unless ``WITH_CUDA=1``."""
    if torch_cuda and is_newer(nvcc, torch_cuda) and os.environ.get("WITH_CUDA") != "1":
        raise BuildError(
            f"{nvcc} ({version_line(nvcc)}) is newer than torch's CUDA {torch_cuda}; drivers that run torch may not "
            f"load its kernels: {install_nvcc(torch_cuda)}, or compile with it nevertheless by WITH_CUDA=1"
        )


def make_plan(torch_cuda: str | None) -> BuildPlan:
    """Returns the plan from the environment variables, the CUDA version of torch, and the compilers found."""
    cxx = find_compiler()
    if cxx is None:
        raise BuildError("no C++ compiler found: install g++ (Debian: apt-get install g++) or set CXX")
    wanted = os.environ.get("WITH_CUDA", "")
    if wanted not in {"", "0", "1"}:
        raise BuildError(f"WITH_CUDA must be 0 or 1, got {wanted!r}")
    nvcc = find_nvcc(torch_cuda)
    if wanted == "1" and nvcc is None:
        raise BuildError("WITH_CUDA=1 but nvcc was not found: install the CUDA toolkit or set CUDA_HOME")
    if wanted == "0" or (wanted == "" and torch_cuda is None):
        nvcc = None
    return BuildPlan(cxx, nvcc, choose_architectures(nvcc) if nvcc else (), os.environ.get("DEBUG") == "1")


def choose_architectures(nvcc: str) -> tuple[str, ...]:
    """Returns ``TORCH_CUDA_ARCH_LIST``, or the defaults that nvcc supports, with PTX for the newest."""
    listed = os.environ.get("TORCH_CUDA_ARCH_LIST", "").replace(" ", ";")
    if listed:
        return tuple(a for a in listed.split(";") if a)
    known = subprocess.run([nvcc, "--list-gpu-arch"], capture_output=True, text=True, check=True).stdout.split()
    numbers = [a.removesuffix("+PTX") for a in DEFAULT_ARCHITECTURES]
    usable = [a for a in numbers if f"compute_{a.replace('.', '')}" in known]
    return (*usable[:-1], f"{usable[-1]}+PTX")


def gencode_flags(architectures: tuple[str, ...]) -> list[str]:
    """Returns the nvcc flags for architectures such as ``("8.0", "9.0+PTX")``."""
    flags = []
    for architecture in architectures:
        number = architecture.removesuffix("+PTX").replace(".", "")
        if not number.rstrip("af").isdigit():
            raise BuildError(f"TORCH_CUDA_ARCH_LIST must look like '8.0;9.0+PTX', got {architecture!r}")
        flags.append(f"-gencode=arch=compute_{number},code=sm_{number}")
        if architecture.endswith("+PTX"):
            flags.append(f"-gencode=arch=compute_{number},code=compute_{number}")
    return flags


def scratch_name(plan: BuildPlan, folder: Path) -> str:
    """Returns the name of the folder for object files of this plan and source folder."""
    return "objects-" + hashlib.sha256(repr((plan, folder)).encode()).hexdigest()[:20]


def cache_key(plan: BuildPlan, sources: str) -> str:
    """Returns the cache key of the library for this plan, source hash and platform."""
    parts = [
        sources,
        platform.system(),
        platform.machine(),
        str(TORCH_TARGET),
        str(plan.architectures),
        str(plan.nvcc and version_line(plan.nvcc)),
        str(plan.debug),
    ]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]


def build(output: Path, scratch: Path, plan: BuildPlan) -> BuildInfo:
    """Compiles the library and its info into the folder ``output``; both appear together or not at all.

    Object files stay in ``scratch`` for incremental builds.

    If nvcc is newer than torch's CUDA or fails, for example with an unsupported host compiler, only the CPU kernels are
    built and the info contains the error; with ``WITH_CUDA=1`` the error is raised.
    """
    try:
        return _build(output, scratch, plan)
    except BuildError as error:
        if not plan.cuda or os.environ.get("WITH_CUDA") == "1":
            raise
        cpu_only = replace(plan, nvcc=None, architectures=())
        return _build(output, scratch, cpu_only, cuda_problem=str(error))


def _build(output: Path, scratch: Path, plan: BuildPlan, cuda_problem: str | None = None) -> BuildInfo:
    import torch

    check_torch(torch.__version__)
    if plan.nvcc:
        check_nvcc(plan.nvcc, torch.version.cuda)
    folder = source_folder()
    sources = source_hash(folder)
    names = [file.relative_to(folder) for file in source_files(folder)]
    run_ninja(scratch, ninja_file(folder, names, plan, Path(torch.__file__).parent))
    content = (scratch / LIBRARY).read_bytes()
    info = BuildInfo(
        sources=sources,
        sha256=hashlib.sha256(content).hexdigest(),
        architectures=list(plan.architectures),
        compiler=version_line(plan.cxx),
        nvcc=version_line(plan.nvcc) if plan.nvcc else None,
        torch=torch.__version__,
        cuda_problem=cuda_problem,
    )
    _write_both(output, content, (json.dumps(asdict(info), indent=2) + "\n").encode())
    return info


def copy(library: Path, output: Path) -> None:
    """Copies a compiled library and its info into the folder ``output``, if it was compiled from these sources."""
    check_library(library, source_hash(source_folder()))
    _write_both(output, (library / LIBRARY).read_bytes(), (library / INFO).read_bytes())


def _write_both(output: Path, library: bytes, info: bytes) -> None:
    """Writes the info last; it contains the library's hash, so a truncated library is never loaded.

    Files are renamed into place: processes that have loaded the old library keep it.
    """
    output.mkdir(parents=True, exist_ok=True)
    (output / INFO).unlink(missing_ok=True)
    for name, content in ((LIBRARY, library), (INFO, info)):
        with atomic.new_file(output / name) as temporary:
            temporary.write_bytes(content)


def version_line(tool: str) -> str:
    """Returns the line of ``tool --version`` with the version number."""
    lines = subprocess.run([tool, "--version"], capture_output=True, text=True, check=False).stdout.splitlines()
    return next((line for line in lines if "release" in line), lines[0] if lines else "unknown version")


def run_ninja(scratch: Path, text: str) -> None:
    """Compiles changed sources and links. If old object files do not link, deletes and recompiles them."""
    had_objects = any(scratch.glob("*.o"))
    scratch.mkdir(parents=True, exist_ok=True)
    (scratch / "build.ninja").write_text(text)
    (scratch / LIBRARY).unlink(missing_ok=True)
    jobs = ["-j", os.environ["MAX_JOBS"]] if os.environ.get("MAX_JOBS") else []
    code, output = _run_with_progress([find_ninja(), "-C", str(scratch), *jobs])
    if code == 0:
        return
    if had_objects and re.search(rf"^FAILED: (\[code=\d+\] )?{LIBRARY}", output, re.MULTILINE):
        shutil.rmtree(scratch)
        run_ninja(scratch, text)
        return
    tail = "\n".join(output.splitlines()[-30:])
    raise BuildError(f"compiling the native library failed:\n{tail}")


def _run_with_progress(ninja: list[str]) -> tuple[int, str]:
    """Runs ninja and returns its exit code and output; writes the number of compiled files and the time left to stderr.

    On a terminal one line is rewritten for every file; otherwise a line is written at most every ten seconds.
    """
    environment = {**os.environ, "NINJA_STATUS": "[%f/%t] "}
    terminal = sys.stderr.isatty()
    begin = written = time.monotonic()
    output = []
    with subprocess.Popen(
        ninja, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        try:
            for line in process.stdout or ():
                output.append(line)
                now, status = time.monotonic(), re.match(r"\[(\d+)/(\d+)\] ", line)
                if status and (terminal or now - written >= LOG_SECONDS):
                    written = now
                    text = progress_line(int(status[1]), int(status[2]), now - begin)
                    # "\033[K" clears the rest of a longer previous line.
                    sys.stderr.write(f"\r{text}\033[K" if terminal else f"{text}\n")
                    sys.stderr.flush()
        except BaseException:
            process.terminate()  # ninja then ends its compilers
            raise
    if terminal and written > begin:
        sys.stderr.write("\n")
    return process.returncode, "".join(output)


def progress_line(done: int, files: int, seconds: float) -> str:
    """Returns the progress of a compilation, and the time left if all files take equally long.

    >>> progress_line(10, 40, seconds=60)
    'pfl-fast: compiled 10 of 40 files, about 3.0 min left'
    """
    left = f", about {seconds * (files - done) / done / 60:.1f} min left" if 0 < done < files else ""
    return f"pfl-fast: compiled {done} of {files} files{left}"


def find_ninja() -> str:
    """Returns ninja from the path, else from the Python package."""
    on_path = shutil.which("ninja")
    if on_path:
        return on_path
    import ninja

    return str(Path(ninja.BIN_DIR) / "ninja")


def ninja_file(folder: Path, names: list[Path], plan: BuildPlan, torch_folder: Path) -> str:
    """Returns the ninja file of the build: CPU kernels once per instruction set, other sources once.

    ``names`` are the sources, relative to ``folder``.
    """
    level = ["-O0", "-g"] if plan.debug else ["-O3"]
    x86 = platform.machine() in {"x86_64", "AMD64"}
    defines = [TARGET_FLAG, *(["-DPFL_WITH_X86_CAPABILITIES"] if x86 else [])]
    own = [f"-I{folder}"]
    tensor_level = [] if plan.debug else ["-O1"]  # checks and allocations: -O3 takes a third longer and gains nothing
    cxx_flags = [*COMMON_FLAGS, *EXACT_FLAGS, *level, *defines, *own, "-isystem", str(torch_folder / "include")]
    linker = [plan.nvcc, "-shared", "-cudart", "static"] if plan.nvcc else [plan.cxx, "-shared"]
    compiler = join([plan.cxx])
    lines = [
        *rule("cxx", f"{compiler} -MMD -MF $out.d {join(cxx_flags)} $extra -c $in -o $out"),
        *rule("header", f"{compiler} -MMD -MF $out.d {join([*cxx_flags, *tensor_level])} -x c++-header $in -o $out"),
        f"build {HEADER.name}.gch: header {escape(folder / HEADER)}",
        *rule("nvcc", f"{nvcc_command(plan, own, level)} -MD -MF $out.d -c $in -o $out"),
        *rule("link", f"{join(linker)} $in -o $out {join(['-L', str(torch_folder / 'lib')])} -ltorch_cpu", ()),
    ]
    objects = []

    def compile_one(rule: str, source: Path, name: str, extra: str = "", needs: str = "") -> None:
        objects.append(name)
        lines.append(f"build {name}: {rule} {escape(folder / source)}{needs and f' | {needs}'}")
        lines.append(f"  extra = {extra}")

    def compile_tensor_code(source: Path, name: str) -> None:
        # The compiler looks for the precompiled header in the working directory.
        compile_one("cxx", source, name, join([*tensor_level, "-include", HEADER.name]), f"{HEADER.name}.gch")

    for source in [name for name in names if name.suffix in {".cpp", ".cu"}]:
        stem = "_".join(source.with_suffix("").parts)
        if source.suffix == ".cu" or source.stem.startswith("cuda"):
            if plan.cuda and source.suffix == ".cu":
                compile_one("nvcc", source, f"{stem}.o")
            elif plan.cuda:
                compile_tensor_code(source, f"{stem}.o")
        elif source.stem.endswith("_kernel"):
            for capability in CAPABILITY_FLAGS if x86 else ["baseline"]:
                extra = join([f"-DPFL_CAPABILITY={capability}", *CAPABILITY_FLAGS[capability]])
                compile_one("cxx", source, f"{stem}_{capability}.o", extra)
        else:
            compile_tensor_code(source, f"{stem}.o")
    lines += [f"build {LIBRARY}: link {' '.join(objects)}", f"default {LIBRARY}", ""]
    return "\n".join(lines)


def rule(name: str, command: str, dependencies: tuple[str, ...] = ("depfile = $out.d", "deps = gcc")) -> list[str]:
    """Returns the lines of a ninja rule."""
    return [f"rule {name}", *(f"  {line}" for line in (f"command = {command}", *dependencies, "description = $out"))]


def nvcc_command(plan: BuildPlan, own: list[str], level: list[str]) -> str:
    """Returns the nvcc command with its flags; ``false`` without CUDA, because the rule needs a command."""
    if plan.nvcc is None:
        return "false"
    return (
        join([plan.nvcc, "-ccbin", plan.cxx, "--threads", "0", *NVCC_FLAGS, *level, *own])
        + " "
        + join(gencode_flags(plan.architectures))
    )


def join(words: list[str]) -> str:
    """Returns a shell command line, escaped for a ninja file."""
    return shlex.join(words).replace("$", "$$")


def escape(path: Path) -> str:
    """Returns a path, escaped for a ninja file."""
    return str(path).replace("$", "$$").replace(" ", "$ ").replace(":", "$:")
