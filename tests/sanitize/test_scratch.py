"""Sanitizers find scratch memory that is too small."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from pfl_fast.native import build
from tests.sanitize.library import compiler, flags

CSRC = build.source_folder()
DRIVER = Path(__file__).with_name("scratch_driver.cpp")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not build.find_compiler(), reason="needs a C++ compiler")]


def run(folder, header, before, after):
    """Runs the driver with a change of one header; returns the exit code and the error output."""
    text = (CSRC / header).read_text()
    assert before in text
    changed = folder / header
    changed.parent.mkdir(parents=True)
    changed.write_text(text.replace(before, after))
    program = folder / "driver"
    command = [compiler(), *build.COMMON_FLAGS, *flags("address"), f"-I{folder}", f"-I{CSRC}", DRIVER, "-o", program]
    subprocess.run(list(map(str, command)), check=True)
    process = subprocess.run([program], capture_output=True, text=True, check=False)
    return process.returncode, process.stderr


def test_unchanged_kernel_has_no_errors(tmp_path):
    assert run(tmp_path, "cpu/simd/scratch.h", "scratch_(op,", "scratch_(op,") == (0, "")


def test_request_beyond_the_memory_is_named(tmp_path):
    code, errors = run(tmp_path, "cpu/simd/scratch.h", "requested(arguments...))", "requested(arguments...) / 2)")
    assert code != 0
    assert "pfl_fast::conv_relu_pool: scratch memory: requested 576 bytes, available 512 of 640" in errors


def test_access_beyond_a_piece_is_found(tmp_path):
    code, errors = run(tmp_path, "ops/conv_relu_pool/cpu_image.h", "copies * size", "copies * size / 2")
    assert code != 0
    assert "ERROR: AddressSanitizer" in errors
