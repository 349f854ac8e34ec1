"""Compiles the ghost GPU: a CUDA runtime and cuBLAS without a GPU, and the host code of pfl_fast's CUDA operators.

All libraries are kept in the user's cache folder, by the hash of their sources.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from pathlib import Path

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
DRIVER = """
extern "C" {
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
    if not folder.is_dir():
        scratch = folder.with_name(f"{folder.name}.{os.getpid()}")
        scratch.mkdir(parents=True, exist_ok=True)
        compile_runtime(scratch)
        compile_cublas(scratch)
        compile_driver(scratch)
        compile_operators(scratch)
        try:
            scratch.rename(folder)
        except OSError:  # another process was faster
            if not folder.is_dir():
                raise
    return folder


def run(*arguments: str | Path) -> None:
    """Runs the C++ compiler."""
    subprocess.run([str(build.find_compiler()), *map(str, arguments)], check=True)


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
    quiet = {"cuInit", "cuCtxSetCurrent"}
    lines = [DRIVER]
    for name in sorted(wanted("cu") - set(re.findall(r"int (cu\w+)\(", DRIVER))):
        lines.append(f"int {name}() {{ return {0 if name in quiet else 801}; }}")
    (folder / "driver.cpp").write_text("\n".join([*lines, "}", ""]))
    run(*FLAGS, "-shared", "-Wl,-soname,libcuda.so.1", folder / "driver.cpp", "-o", folder / "libcuda.so.1")


def compile_operators(folder: Path) -> None:
    """Compiles the host code of the CUDA operators, with launchers that only count."""
    flags = [*build.COMMON_FLAGS, "-O0", build.TARGET_FLAG, f"-I{CSRC}", "-isystem", str(TORCH / "include")]
    flags += ["-include", str(build.HEADER)]
    objects = []
    for source in sorted((CSRC / "ops").glob("*/cuda.cpp")):
        objects.append(folder / f"{source.parent.name}.o")
        run(*flags, "-c", source, "-o", objects[-1])
    launchers = {name for part in objects for name in symbols(part, "--undefined-only") if name.startswith("pfl_cuda_")}
    launchers.discard("pfl_cuda_error_string")
    lines = ["int ghost_launch(const char*);", 'const char* pfl_cuda_error_string(int) { return "ghost error"; }']
    lines += [f'int {name}(const void*, void*) {{ return ghost_launch("{name}"); }}' for name in sorted(launchers)]
    (folder / "launchers.cpp").write_text("\n".join(['extern "C" {', *lines, "}", ""]))
    torch_cpu = ["-L", TORCH / "lib", "-ltorch_cpu"]
    run(*FLAGS, "-shared", folder / "launchers.cpp", *objects, "-o", folder / "libghost_ops.so", *torch_cpu)


def wanted(prefix: str) -> set[str]:
    """Functions of a CUDA library that torch and the libraries next to it need."""
    libraries = [*(TORCH / "lib").glob("*.so"), *TORCH.parent.glob("nvidia/*/lib/*.so*")]
    found = set().union(*(symbols(library, "-D", "--undefined-only") for library in libraries))
    return {name for name in found if re.match(rf"(__)?{prefix}[A-Z]", name)}


def symbols(file: Path, *options: str) -> set[str]:
    """Names in the symbol table of a library or object file."""
    output = subprocess.run(["nm", *options, str(file)], capture_output=True, text=True, check=True).stdout
    return {line.split()[-1].split("@")[0] for line in output.splitlines()}


def environment(gpus: int = 1, memory: int = 40 << 30) -> dict[str, str]:
    """Environment of a process with ghost GPUs of ``memory`` bytes each."""
    folder = ghost()
    libraries = " ".join(str(folder / name) for name in (runtime_name(), "libcuda.so.1", "libghost_cublas.so"))
    return {
        **os.environ,
        "LD_PRELOAD": libraries,
        "GHOST_GPUS": str(gpus),
        "GHOST_MEMORY": str(memory),
        "GHOST": str(folder),
    }
