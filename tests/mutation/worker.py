"""Runs checks of mutants in forks of a process that has imported torch: a mutant may crash or run forever."""

from __future__ import annotations

import importlib
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.sanitize.library import SANITIZERS, compiler

PASSED, CAUGHT, INVALID = range(3)


class Worker:
    """A process that runs checks of one kind of kernels.

    Args:
        checks: module with a function ``passes(kernel, source, variant)``.
        sanitized: load the address sanitizer first.
    """

    def __init__(self, checks: str, sanitized: bool = False) -> None:
        variables = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "OMP_NUM_THREADS": "1"}
        if sanitized:
            _, libraries, options = SANITIZERS["address"]
            commands = [[compiler(), f"-print-file-name={name}"] for name in libraries]
            paths = [subprocess.run(c, capture_output=True, text=True, check=True).stdout.strip() for c in commands]
            variables |= options | {"LD_PRELOAD": " ".join(paths)}
        self.folder = tempfile.TemporaryDirectory()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.mutation.worker", checks],
            env={**os.environ, **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def check(self, kernel: Path, text: str, variant: str, seconds: int = 3600) -> tuple[int, float]:
        """Checks the kernel with another source text.

        Returns PASSED, CAUGHT (a check fails, or one process takes longer than ``seconds`` of CPU time) or INVALID (the
        text does not compile), and the seconds of CPU time used.
        """
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        source = Path(self.folder.name) / kernel.name
        source.write_text(text)
        request = {"kernel": str(kernel), "source": str(source), "variant": variant, "seconds": seconds}
        print(json.dumps(request), file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the worker ended with exit code {self.process.wait()}")
        code, used = json.loads(answer)
        return (code if code in (PASSED, INVALID) else CAUGHT), used

    def close(self) -> None:
        self.process.communicate()
        self.folder.cleanup()


def main() -> None:
    os.environ.pop("LD_PRELOAD", None)  # for this process only, not for compilers
    checks = importlib.import_module(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            run(checks, **json.loads(line))
        _, status, used = os.wait4(child, 0)
        print(json.dumps([os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime]), file=answers, flush=True)


def run(checks: Any, kernel: str, source: str, variant: str, seconds: int) -> None:
    """Ends the process with PASSED or INVALID; any other exit code or signal means that a check fails."""
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    silence = os.open(os.devnull, os.O_RDWR)  # hides failed tests and reports of sanitizers
    for stream in (0, 1, 2):
        os.dup2(silence, stream)
    code = CAUGHT
    try:
        passed = checks.passes(Path(kernel), Path(source), variant)
        code = INVALID if passed is None else PASSED if passed else CAUGHT
    finally:
        os._exit(code)


if __name__ == "__main__":
    main()
