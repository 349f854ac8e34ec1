"""Static report on the CUDA kernels, without a GPU: ``make cuda-report`` writes bench/cuda_report.md.

Registers, shared memory and spills are ptxas's figures for each architecture; occupancy is computed from them and the
block size in the PTX. Memory traffic is counted by running the kernels under emulation (csrc/emulation/meter.cpp).
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pfl_fast.native import build
from tests.emulation.harness import CSRC, OPERATORS, Emulator
from tests.emulation.kernels import CASES

REPORT = Path(__file__).with_name("cuda_report.md")


@dataclass(frozen=True)
class Architecture:
    """Limits of one multiprocessor, from the CUDA C++ programming guide."""

    name: str
    threads: int
    blocks: int
    shared: int
    registers: int = 65536


ARCHITECTURES = [
    Architecture("75", 1024, 16, 64 * 1024),
    Architecture("80", 2048, 32, 164 * 1024),
    Architecture("90", 2048, 32, 228 * 1024),
]


@dataclass(frozen=True)
class Kernel:
    name: str
    registers: int
    shared: int
    spills: int
    block: int

    def occupancy(self, architecture: Architecture) -> float:
        """Returns the fraction of the multiprocessor's threads that can be resident."""
        warps = -(-self.block // 32)
        registers_per_warp = -(-self.registers * 32 // 256) * 256  # allocated in units of 256
        by_registers = architecture.registers // (registers_per_warp * warps)
        by_shared = architecture.shared // (self.shared + 1024)  # CUDA reserves 1 KiB per block
        blocks = min(architecture.threads // self.block, architecture.blocks, by_registers, by_shared)
        return blocks * self.block / architecture.threads


def kernels_of(source: Path, architecture: Architecture, nvcc: str, folder: Path) -> list[Kernel]:
    flags = [*build.NVCC_FLAGS, "-O3", f"-I{CSRC}", f"-arch=sm_{architecture.name}"]
    cubin = [nvcc, *flags, "-Xptxas", "-v", "-cubin", str(source), "-o", str(folder / "kernel.cubin")]
    log = subprocess.run(cubin, capture_output=True, text=True, check=True).stderr
    ptx_file = folder / "kernel.ptx"
    subprocess.run([nvcc, *flags, "-ptx", str(source), "-o", str(ptx_file)], check=True, capture_output=True)
    blocks = dict(re.findall(r"\.entry (\w+)\([^{]*?\.maxntid (\d+)", ptx_file.read_text(), re.DOTALL))
    found = []
    for entry in log.split("Compiling entry function '")[1:]:
        mangled = entry.split("'")[0]
        spills = sum(int(n) for n in re.findall(r"(\d+) bytes spill", entry))
        shared = sum(int(n) for n in re.findall(r"(\d+) bytes smem", entry))
        registers = int(re.findall(r"Used (\d+) registers", entry)[0])
        found.append(Kernel(readable(mangled), registers, shared, spills, int(blocks[mangled])))
    return sorted(found, key=lambda kernel: kernel.name)


def readable(mangled: str) -> str:
    """Demangles the name of a kernel, for example to ``aggregate_kernel<float, 4>``."""
    name = subprocess.run(["c++filt", mangled], capture_output=True, text=True, check=True).stdout.strip()
    name = name.replace("(anonymous namespace)::", "").replace("pfl::", "").removeprefix("void ")
    name = re.sub(r"_GLOBAL__N__\w+::", "", name)
    name = re.sub(r"\((\w+)\)(\w+)", r"\2", name)  # (int)4
    return re.split(r"\((?![^<]*>)", name)[0]


def resources(nvcc: str) -> list[str]:
    lines = [
        "| kernel | " + " | ".join(f"sm_{a.name}" for a in ARCHITECTURES) + " |",
        "| --- |" + " --- |" * len(ARCHITECTURES),
    ]
    with tempfile.TemporaryDirectory() as folder:
        for source in sorted(OPERATORS.glob("*/cuda_kernel.cu")):
            print(f"compiling {source.parent.name}", flush=True)
            columns = [kernels_of(source, a, nvcc, Path(folder)) for a in ARCHITECTURES]
            for row in zip(*columns, strict=True):
                cells = [
                    f"{k.registers} regs, {k.shared} B, {k.spills} spills, {k.occupancy(a):.0%}"
                    for k, a in zip(row, ARCHITECTURES, strict=True)
                ]
                lines.append(f"| `{row[0].name}` x {row[0].block} threads | " + " | ".join(cells) + " |")
    return lines


def traffic() -> list[str]:
    lines = ["| call | bytes moved | least possible | ratio |", "| --- | --- | --- | --- |"]
    with tempfile.TemporaryDirectory() as folder:
        for cases in CASES:
            print(f"running {cases.OPERATOR} under emulation", flush=True)
            emulator = Emulator("meter", [OPERATORS / cases.OPERATOR / "cuda_kernel.cu"], Path(folder))
            for case in cases.TYPICAL:
                problem = cases.Problem(case, 0)
                for call in problem.calls:
                    moved, least = emulator.traffic([call])
                    name = call.function.removeprefix("pfl_cuda_")
                    lines.append(f"| `{name}` {describe(case)} | {moved:,} | {least:,} | {moved / least:.2f} |")
                problem.check()
    return lines


def describe(case: object) -> str:
    """Returns the fields of a case that differ from their defaults."""
    fields = getattr(case, "__dataclass_fields__", {})
    shown = {n: getattr(case, n) for n, f in fields.items() if n != "name" and getattr(case, n) != f.default}
    return ", ".join(f"{name} {str(value).removeprefix('torch.')}" for name, value in shown.items())


def main() -> None:
    nvcc = build.find_nvcc()
    if nvcc is None:
        sys.exit("make cuda-report needs nvcc: install the CUDA toolkit or set CUDA_HOME")
    REPORT.write_text(
        "\n".join(
            [
                "# CUDA kernels, as far as they can be known without a GPU",
                "",
                f"Written by `make cuda-report` on {datetime.now(UTC):%Y-%m-%d} with {build.version_line(nvcc)}.",
                "Speed is not here: it was not measured.",
                "",
                "## Resources",
                "",
                "Registers per thread, shared memory per block, bytes spilled, and the share of the multiprocessor's",
                "threads that can be resident (theoretical occupancy).",
                "",
                *resources(nvcc),
                "",
                "## Memory traffic",
                "",
                "Counted under emulation in sectors of 32 bytes. Moved: every sector once per block that reads it and",
                "once per block that writes it. Least possible: every sector once per launch.",
                "",
                *traffic(),
                "",
            ]
        )
    )
    print(f"wrote {REPORT}")


if __name__ == "__main__":
    main()
