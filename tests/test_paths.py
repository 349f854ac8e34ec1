"""Folders of the user: the environment decides, then the rules of the platform."""

import os
import sys
from pathlib import Path

import pytest

from pfl_fast.paths import UnsafeFolderError, cache_folder, data_folder, private

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


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PFL_FAST_CACHE", str(tmp_path / "a" / "cache"))
    return tmp_path / "a" / "cache"


def test_cache_folders_are_made_for_the_user_alone(cache):
    before = os.umask(0o002)
    try:
        assert private(cache / "native" / "key") == cache / "native" / "key"
    finally:
        os.umask(before)
    assert [path.stat().st_mode & 0o777 for path in (cache, cache / "native", cache / "native" / "key")] == [0o700] * 3
    private(cache / "native" / "key")


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
@pytest.mark.parametrize("which", [".", "native", "native/key"])
def test_cache_folders_that_others_may_write_to_are_refused(cache, which, mode):
    private(cache / "native" / "key")
    (cache / which).chmod(mode)
    with pytest.raises(UnsafeFolderError, match=rf"mode {mode:o}\): run 'chmod go-w .*PFL_FAST_CACHE"):
        private(cache / "native" / "key")


def test_cache_folders_of_another_user_are_refused(cache, monkeypatch):
    private(cache)
    if os.geteuid() == 0:
        os.chown(cache, 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(UnsafeFolderError, match="belongs to user"):
        private(cache / "native")
