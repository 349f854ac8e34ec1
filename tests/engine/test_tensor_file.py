"""Too little memory for a file of tensors is an error, not the end of the process."""

import os
import resource
from pathlib import Path

import torch

from pfl_fast.engine.state import tensor_file


def test_memory_is_reserved_before_safetensors_needs_it(tmp_path, monkeypatch):
    monkeypatch.setattr(tensor_file, "BUFFER", 1 << 30)
    file, code = tmp_path / "file", 1
    pid = os.fork()
    if pid == 0:  # a child process: the limit stays
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + (1 << 29)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        try:
            tensor_file.save_file({"x": torch.ones(2)}, file)
        except MemoryError:
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert not file.exists()


def test_files_are_readable_as_the_umask_says(tmp_path):
    before = os.umask(0o027)
    try:
        tensor_file.save_file({"x": torch.ones(2)}, tmp_path / "file")
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640
