"""Compares operators with plain torch on every instruction set of the processor, each in a process of its own.

    python -m bench.operators                    all benchmarks, about 20 minutes per instruction set
    python -m bench.operators route mix          only bench/test_route.py and bench/test_mix.py, printed
    python -m bench.operators route --seconds 1  a second per comparison instead of six

All benchmarks together write bench/results.txt, or the file after --out, and the table in docs/performance.md.
Torch and its libraries are limited to the
instruction set of the native kernels. On processors that are not Intel's, MKL chooses its instructions itself.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import machine as here
from bench.race import LEGEND, Race, read, summary, tables

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results.txt"
PERFORMANCE = ROOT / "docs" / "performance.md"
BLOCK = re.compile(r"(<!-- bench-operators -->\n).*?(<!-- /bench-operators -->)", re.DOTALL)
# The native kernels, torch with its compiler, oneDNN, MKL.
SWITCHES = ("PFL_FAST_CPU_CAPABILITY", "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS")
INSTRUCTION_SETS = {
    "baseline": ("baseline", "default", "SSE41", "SSE4_2"),
    "avx2": ("avx2", "avx2", "AVX2", "AVX2"),
    "avx512": ("avx512", "avx512", "AVX512_CORE", "AVX512"),
}
# These write files of their own; see docs/performance.md.
OTHERS = {"batches", "local_step"}


def main(arguments: Sequence[str]) -> None:
    files = {file.stem.removeprefix("test_"): file for file in sorted(ROOT.glob("bench/test_*.py"))}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="OPERATOR", help=", ".join(files))
    parser.add_argument("--seconds", type=float, default=6.0, help="duration of one comparison (default: 6)")
    parser.add_argument("--out", type=Path, help="file of the results; default: bench/results.txt if all are measured")
    chosen = parser.parse_args(arguments)
    if unknown := set(chosen.names) - files.keys():
        parser.error(f"OPERATOR must be of {', '.join(files)}, got {', '.join(sorted(unknown))}")
    tests = [str(file) for name, file in files.items() if name in (chosen.names or files.keys() - OTHERS)]
    out = chosen.out or (None if chosen.names else RESULTS)
    headings = [f"Commit {here.commit()}, {chosen.seconds:g} s per comparison."]
    if warning := here.busy():
        headings.append(f"BUSY: {warning}")
    races: list[Race] = []
    for name in available(here.cpuinfo("flags").split()):
        begin = time.monotonic()
        heading, found = measure(name, tests, chosen.seconds)
        headings.append(f"{heading} {(time.monotonic() - begin) / 60:.1f} min.")
        races += found
        text = "\n".join([*headings, *LEGEND, *tables(races)]) + "\n"
        if out:
            out.write_text(text)
    print(text, end="")
    if out == RESULTS:
        write_docs(headings, races)


def write_docs(headings: Sequence[str], races: Sequence[Race]) -> None:
    """Replaces the table of operators in docs/performance.md."""
    table = "\n\n".join(["  \n".join(headings), summary(races)])
    PERFORMANCE.write_text(BLOCK.sub(lambda found: found[1] + table + found[2], PERFORMANCE.read_text()))


def available(flags: Sequence[str]) -> list[str]:
    """Returns the instruction sets to measure: all of the processor, the baseline only if it has no other."""
    sets = {"avx2": {"avx2", "fma", "f16c"}, "avx512": {"avx512f", "avx512bw", "avx512dq", "avx512vl"}}
    return [name for name, needed in sets.items() if needed <= set(flags)] or ["baseline"]


def environment(name: str) -> dict[str, str]:
    """Returns the variables that limit a process to an instruction set."""
    return {**os.environ, **dict(zip(SWITCHES, INSTRUCTION_SETS[name], strict=True))}


def measure(name: str, tests: Sequence[str], seconds: float) -> tuple[str, list[Race]]:
    """Runs benchmarks with the kernels of an instruction set; returns the description of the process and the races."""
    with TemporaryDirectory() as folder:
        found, ratios = Path(folder) / "races.json", Path(folder) / "ratios.txt"
        files = ["--races", str(found), "--ratios", str(ratios), "--race-seconds", str(seconds)]
        words = [sys.executable, "-m", "pytest", "-q", "--benchmark-enable", "--benchmark-quiet", *files, *tests]
        # torch.compile must not reuse code for another instruction set.
        variables = {**environment(name), "TORCHINDUCTOR_CACHE_DIR": f"{folder}/compiled"}
        if code := subprocess.run(words, check=False, cwd=ROOT, env=variables).returncode:
            sys.exit(f"benchmarks on {name} failed with exit code {code}, see above")
        races = read(found)
        assert {race.kernels for race in races} == {name}, f"{name}: not the kernels that ran"
        return ratios.read_text().splitlines()[0], races


if __name__ == "__main__":
    main(sys.argv[1:])
