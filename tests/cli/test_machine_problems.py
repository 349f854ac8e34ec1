"""Errors of disks and memory end a command with a message, not with a traceback."""

import errno
import os
import resource

import pytest
from click.testing import CliRunner

from pfl_fast.cli import main
from pfl_fast.engine import memory
from tests.cli.conftest import SMALL


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "runs/1"), "runs/1: No space left on device; free some"),
        (OSError(errno.EROFS, os.strerror(errno.EROFS), "runs/1"), "runs/1: Read-only file system; choose a folder"),
        (OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)), "quota"),
        (OSError(errno.EFBIG, os.strerror(errno.EFBIG), "x"), "ulimit -f"),
        (OSError(errno.EMFILE, os.strerror(errno.EMFILE), "x"), "ulimit -n"),
        (OSError(errno.EIO, os.strerror(errno.EIO), "x"), "check the disk"),
        (OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)), "ulimit -v"),
        (MemoryError(), "main memory, or its limit"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 1 bytes"), "--state disk"),
        (ImportError("libtorch_cpu.so: failed to map segment from shared object"), "main memory"),
    ],
)
def test_the_message_names_the_remedy(cli, monkeypatch, error, message):
    def fails(*_, **__):
        raise error

    monkeypatch.setattr("pfl_fast.experiment.Experiment.run", fails)
    result = cli("train", "fedavg", *SMALL, exit_code=1)
    assert "Error: " in result.output
    assert message in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize("error", [ValueError("a bug"), RuntimeError("a bug"), OSError("a bug")])
def test_other_errors_keep_their_traceback(tmp_path, monkeypatch, error):
    def fails(*_, **__):
        raise error

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pfl_fast.experiment.Experiment.run", fails)
    assert CliRunner().invoke(main, ["train", "fedavg", *SMALL]).exception is error


@pytest.mark.parametrize(("method", "what"), [("ditto", "for the state of 500 clients"), ("fedavg", "server 10")])
def test_500_clients_with_alexnet_are_refused(cli, monkeypatch, method, what):
    monkeypatch.setattr(memory, "available", lambda: 16 << 30)
    arguments = ["--clients", "500", "--model", "alexnet", "--samples", "2000", "--partition", "iid"]
    result = cli("train", method, *SMALL[:2], "--image-size", "64", *arguments, exit_code=1)
    assert what in result.output
    assert "but only 16.0 GiB are free" in result.output
    assert "fewer workers" in result.output


def test_a_small_address_space_is_mentioned_before_torch_is_imported(cli, monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1 << 30, 1 << 30))
    assert "limited to 1024 MiB (ulimit -v)" in cli("models").output
