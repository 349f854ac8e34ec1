"""Compiles the ghost GPU: a CUDA runtime and cuBLAS without a GPU, and the host code of pfl_fast's CUDA operators.

All libraries are kept in the user's cache folder, by the hash of their sources. There are two libraries of operators:
their launchers count, or run the kernels on the CPU by ``csrc/emulation``.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from pfl_fast.native import build
from pfl_fast.paths import cache_folder

TORCH = Path(torch.__file__).parent
SOURCE = Path(__file__).with_name("cudart.cpp")
CSRC = build.source_folder()
CACHE = cache_folder() / "ghost"  # tests have a cache folder of their own each; this one is the user's
FLAGS = ["-std=c++17", "-O1", "-fPIC"]
# Functions of cuBLAS that return something through a pointer. Others return 0, and are counted unless they are setters.
CUBLAS = """
#include <cstdlib>
#include <cstring>
extern "C" {
int ghost_launch(const char*);
int cublasCreate_v2(void** handle) { *handle = malloc(64); return 0; }
int cublasGetMathMode(void*, int* mode) { *mode = 0; return 0; }
int cublasGetPointerMode_v2(void*, int* mode) { *mode = 0; return 0; }
int cublasLtMatmulDescCreate(void** it, int, int) { *it = malloc(64); return 0; }
int cublasLtMatmulPreferenceCreate(void** it) { *it = malloc(64); return 0; }
int cublasLtMatrixLayoutCreate(void** it, int, unsigned long, unsigned long, long) { *it = malloc(64); return 0; }
int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*, int, void* result, int* found) {
  memset(result, 0, 64);
  *found = 1;
  return 0;
}
"""
# nvcc's own header, which PyPI's torch does not bring along: without nvcc its macros mean nothing or an alignment.
HOST_DEFINES = """
#define CUDARTAPI
#define CUDARTAPI_CDECL
#define __host__
#define __device__
#define __device_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __cudart_builtin__
#define __specialization_static static
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __align__(n)
"""
COUNTING = """
extern "C" {
int ghost_launch(const char*);
"""
# Launchers run one at a time: the emulation has one state. Each records the current device and the stream.
EMULATED_LAUNCHER = """
extern "C" int emulated_NAME(const void*, void*);
extern "C" int NAME(const void* problem, void* stream) {
  std::lock_guard<std::mutex> guard(mutex);
  record("NAME", stream);
  return emulated_NAME(problem, stream);
}
"""
EMULATED_LAUNCHERS = """
#include <cuda_runtime_api.h>
#include <mutex>
#include <string>
extern "C" int ghost_launch(const char*);
namespace {
std::mutex mutex;
std::string launches;
void record(const char* name, void* stream) {
  int device = -1;
  cudaGetDevice(&device);
  ghost_launch(name);
  launches += std::string(name) + " " + std::to_string(device) + " " + std::to_string((unsigned long)stream) + "\\n";
}
}
// For tests: lines "launcher device stream" since the last call.
extern "C" const char* ghost_kernels() {
  static std::string text;
  std::lock_guard<std::mutex> guard(mutex);
  text.swap(launches);
  launches.clear();
  return text.c_str();
}
"""
# The driver launches kernels that torch compiles at run time, such as that of erfinv.
DRIVER = """
extern "C" {
int ghost_launch(const char*);
int cuModuleGetFunction(void** function, void*, const char*) { *function = nullptr; return 0; }
int cuLaunchKernel() { return ghost_launch("kernel compiled at run time"); }
int cuDevicePrimaryCtxGetState(int, unsigned* flags, int* active) { if (flags) *flags = 0; *active = 1; return 0; }
int cuCtxGetCurrent(void** context) { *context = reinterpret_cast<void*>(1); return 0; }
int cuDevicePrimaryCtxRetain(void** context, int) { *context = reinterpret_cast<void*>(1); return 0; }
int cuGetErrorString(int, const char** text) { *text = "ghost error"; return 0; }
"""
QUIET = ("Set", "Get", "Create", "Destroy", "AlgoInit", "AlgoCheck", "AlgoConfig")


def headers() -> Path | None:
    """The CUDA headers of the package that torch was installed with, or None."""
    major = (torch.version.cuda or "0").split(".")[0]
    folder = TORCH.parent / "nvidia" / f"cu{major}" / "include"
    return folder if (folder / "cuda_runtime_api.h").is_file() else None


def missing() -> str | None:
    """Why the ghost GPU cannot be compiled here, or None."""
    if torch.version.cuda is None:
        return "needs a torch built with CUDA; no GPU is needed"
    if headers() is None or build.find_compiler() is None:
        return "needs a C++ compiler and pip's CUDA 13 headers, which PyPI's torch brings along"
    return None


def ghost() -> Path:
    """Compiles the libraries if necessary and returns their folder."""
    sources = [Path(__file__), SOURCE, *build.source_files(CSRC)]
    text = b"".join(file.read_bytes() for file in sources) + torch.__version__.encode()
    folder = CACHE / hashlib.sha256(text).hexdigest()[:20]
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other processes wait instead of compiling too
        if not folder.is_dir():
            scratch = folder.with_suffix(".new")
            shutil.rmtree(scratch, ignore_errors=True)
            scratch.mkdir()
            compile_runtime(scratch)
            compile_cublas(scratch)
            compile_driver(scratch)
            compile_operators(scratch)
            scratch.rename(folder)
    return folder


def run(*arguments: str | Path) -> None:
    """Runs the C++ compiler."""
    subprocess.run([str(build.find_compiler()), *map(str, arguments)], check=True)


def run_all(commands: Iterable[Sequence[str | Path]]) -> None:
    """Runs the C++ compiler with several command lines, as many at a time as there are cores."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda arguments: run(*arguments), commands))


def runtime_name() -> str:
    """Name of the CUDA runtime that torch loads."""
    return f"libcudart.so.{str(torch.version.cuda).split('.')[0]}"


def compile_runtime(folder: Path) -> None:
    """Compiles the CUDA runtime; functions that torch needs and cudart.cpp lacks return cudaErrorNotSupported."""
    part = folder / "cudart.o"
    (folder / "crt").mkdir()
    (folder / "crt" / "host_defines.h").write_text(HOST_DEFINES)
    run(*FLAGS, "-c", SOURCE, "-o", part, f"-I{folder}", "-isystem", str(headers()))
    others = wanted("cuda") - symbols(part, "--defined-only")
    stubs = "".join(f'extern "C" int {name}() {{ return 801; }}\n' for name in sorted(others))
    (folder / "stubs.cpp").write_text(stubs)
    (folder / "versions").write_text(f"{runtime_name()} {{ global: cuda*; __cuda*; ghost_*; local: *; }};")
    options = [f"-Wl,-soname,{runtime_name()}", f"-Wl,--version-script={folder / 'versions'}"]
    run(*FLAGS, "-shared", *options, folder / "stubs.cpp", part, "-o", folder / runtime_name())


def compile_cublas(folder: Path) -> None:
    """Compiles stubs of all functions of cuBLAS that torch needs."""
    own = set(re.findall(r"int (cublas\w+)\(", CUBLAS))
    lines = [CUBLAS]
    for name in sorted(wanted("cublas") - own):
        counted = not any(word in name for word in QUIET)
        lines.append(f"int {name}() {{ return {f'ghost_launch({chr(34)}{name}{chr(34)})' if counted else 0}; }}")
    (folder / "cublas.cpp").write_text("\n".join([*lines, "}", ""]))
    run(*FLAGS, "-shared", folder / "cublas.cpp", "-o", folder / "libghost_cublas.so")


def compile_driver(folder: Path) -> None:
    """Compiles stubs of all functions of the CUDA driver that torch needs; there is an active context."""
    quiet = {"cuInit", "cuCtxSetCurrent", "cuModuleLoadData", "cuModuleLoadDataEx"}
    lines = [DRIVER]
    for name in sorted(wanted("cu") - set(re.findall(r"int (cu\w+)\(", DRIVER))):
        lines.append(f"int {name}() {{ return {0 if name in quiet else 801}; }}")
    (folder / "driver.cpp").write_text("\n".join([*lines, "}", ""]))
    run(*FLAGS, "-shared", "-Wl,-soname,libcuda.so.1", folder / "driver.cpp", "-o", folder / "libcuda.so.1")


def compile_operators(folder: Path) -> None:
    """Compiles the host code of the CUDA operators twice: with launchers that count, and with emulated kernels."""
    (folder / "cuda_runtime.h").write_text("#include <cuda_runtime_api.h>\n")
    flags = [*build.COMMON_FLAGS, "-O0", build.TARGET_FLAG, f"-I{CSRC}", "-isystem", str(TORCH / "include")]
    sources = {source: folder / f"{source.parent.name}.o" for source in (CSRC / "ops").glob("*/cuda.cpp")}
    run_all([*flags, "-include", str(build.HEADER), "-c", source, "-o", part] for source, part in sources.items())
    errors = folder / "error.o"
    run(
        *FLAGS,
        "-x",
        "c++",
        "-c",
        CSRC / "cuda/common/error.cu",
        "-o",
        errors,
        f"-I{folder}",
        "-isystem",
        str(headers()),
    )
    host = [*sources.values(), errors]
    needed = set().union(*(symbols(part, "--undefined-only") for part in host))
    launchers = sorted(needed & {name for name in needed if name.startswith("pfl_cuda_")} - {"pfl_cuda_error_string"})
    counting = [f'int {name}(const void*, void*) {{ return ghost_launch("{name}"); }}' for name in launchers]
    link_operators(folder / "libghost_ops.so", "\n".join([COUNTING, *counting, "}", ""]), host)
    emulated = [EMULATED_LAUNCHER.replace("NAME", name) for name in launchers]
    kernels = compile_kernels(folder, launchers)
    link_operators(folder / "libghost_emulated_ops.so", "".join([EMULATED_LAUNCHERS, *emulated]), [*host, *kernels])


def compile_kernels(folder: Path, launchers: list[str]) -> list[Path]:
    """Compiles the CUDA kernels and the runtime of the emulation; launchers get the prefix ``emulated_``."""
    flags = [*FLAGS, "-DPFL_EMULATION", *build.EXACT_FLAGS, "-Wno-unknown-pragmas", f"-I{CSRC}", f"-I{CSRC}/emulation"]
    flags += [f"-D{name}=emulated_{name}" for name in launchers]
    parts = {source: folder / f"{source.parent.name}_kernel.o" for source in (CSRC / "ops").glob("*/cuda_kernel.cu")}
    parts[CSRC / "emulation" / "runtime.cpp"] = folder / "emulation.o"
    run_all([*flags, "-x", "c++", "-c", source, "-o", part] for source, part in parts.items())
    return list(parts.values())


def link_operators(library: Path, launchers: str, parts: list[Path]) -> None:
    """Compiles the launchers and links them with the object files."""
    source = library.with_suffix(".cpp")
    source.write_text(launchers)
    torch_cpu = ["-L", TORCH / "lib", "-ltorch_cpu"]
    run(*FLAGS, "-shared", f"-I{library.parent}", "-isystem", str(headers()), source, *parts, "-o", library, *torch_cpu)


def wanted(prefix: str) -> set[str]:
    """Functions of a CUDA library that torch and the libraries next to it need."""
    libraries = [*(TORCH / "lib").glob("*.so"), *TORCH.parent.glob("nvidia/*/lib/*.so*")]
    found = set().union(*(symbols(library, "-D", "--undefined-only") for library in libraries))
    return {name for name in found if re.match(rf"(__)?{prefix}[A-Z]", name)}


def symbols(file: Path, *options: str) -> set[str]:
    """Names in the symbol table of a library or object file."""
    output = subprocess.run(["nm", *options, str(file)], capture_output=True, text=True, check=True).stdout
    return {line.split()[-1].split("@")[0] for line in output.splitlines()}


def environment(gpus: int = 1, memory: int = 40 << 30, values: bool = False) -> dict[str, str]:
    """Environment of a process with ghost GPUs of ``memory`` bytes each; with ``values``, copies copy."""
    folder = ghost()
    libraries = " ".join(str(folder / name) for name in (runtime_name(), "libcuda.so.1", "libghost_cublas.so"))
    return {
        **os.environ,
        "LD_PRELOAD": libraries,
        "GHOST_GPUS": str(gpus),
        "GHOST_MEMORY": str(memory),
        "GHOST_VALUES": str(int(values)),
        "GHOST": str(folder),
    }


def output(module: str, **values: Any) -> Any:
    """Returns the JSON object that a module of this package prints, in a process with ghost GPUs (``environment``)."""
    command = [sys.executable, "-m", f"tests.device.ghost.{module}"]
    done = subprocess.run(command, env=environment(**values), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])
