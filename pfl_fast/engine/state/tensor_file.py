"""Writes safetensors files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors import torch as safetensors
from torch import Tensor

BUFFER = 4 << 20  # bytes, more than safetensors takes besides the tensors


def save_file(tensors: Mapping[str, Tensor], file: Path, metadata: dict[str, str] | None = None) -> None:
    """Writes a safetensors file; raises MemoryError where safetensors, without memory for a buffer, ends the process.

    Args:
        tensors: contiguous tensors.
        file: file to write.
        metadata: texts for the header.
    """
    bytearray(BUFFER)
    file.touch()
    mode = file.stat().st_mode  # as the umask says; safetensors writes a file that only the owner may read
    safetensors.save_file(dict(tensors), file, metadata)
    file.chmod(mode)
