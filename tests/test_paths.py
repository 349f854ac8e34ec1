"""Folders of the user: the environment decides, then the rules of the platform."""

import sys
from pathlib import Path

import pytest

from pfl_fast.paths import cache_folder, data_folder

FOLDERS = [(cache_folder, "PFL_FAST_CACHE", "XDG_CACHE_HOME", ".cache")]
FOLDERS += [(data_folder, "PFL_FAST_DATA", "XDG_DATA_HOME", ".local/share")]


@pytest.mark.skipif(sys.platform != "linux", reason="XDG folders are those of Linux")
@pytest.mark.parametrize(("folder", "ours", "xdg", "default"), FOLDERS)
def test_the_environment_decides_then_xdg_then_the_home_folder(monkeypatch, folder, ours, xdg, default):
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.delenv(xdg, raising=False)
    monkeypatch.setenv(ours, "")
    assert folder() == Path("/home/someone") / default / "pfl-fast"
    monkeypatch.setenv(xdg, "/xdg")
    assert folder() == Path("/xdg/pfl-fast")
    monkeypatch.setenv(ours, "~/own")
    assert folder() == Path("/home/someone/own")
