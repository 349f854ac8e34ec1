"""A result file that grows by rows, and can be returned to its contents at any checkpoint."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pfl_fast import atomic
from pfl_fast.errors import PflFastError


class LostResultsError(PflFastError):
    """Rows of a result file are lost."""


class ResultFile:
    """A text file to which every round appends rows.

    A checkpoint holds the rows since the checkpoint before it, and size and digest of all rows before them. These are
    in a copy of the file, in the folder of checkpoints, which is written after the checkpoint. A result file that is
    damaged, or that could not be written, is made again from copy and checkpoint; a damaged copy from the file.

    Args:
        file: the result file.
        copy: its copy.
    """

    def __init__(self, file: Path, copy: Path) -> None:
        self.file, self.copy = file, copy
        self._saved, self._digest = 0, _new_digest()  # bytes and digest of the rows before the last checkpoint's
        self._rows = b""  # rows since
        self._written = 0  # bytes of all rows that are in the file
        self._waiting = b""  # rows that are not

    def begin(self, rows: str) -> None:
        """Sets the first rows, which :meth:`repair` writes after the first checkpoint."""
        self._rows = rows.encode()

    def add(self, rows: str) -> None:
        """Appends rows; after an error they are kept, and written together with the next ones."""
        self._rows += rows.encode()
        self._waiting += rows.encode()
        if (self.file.stat().st_size if self.file.exists() else 0) == self._written:
            atomic.append(self.file, self._waiting)
        else:  # cut short by an error, or changed by somebody else
            atomic.write_bytes(self.file, self.content())
        self._written += len(self._waiting)
        self._waiting = b""

    def state(self) -> dict[str, Any]:
        """Returns the entry of a checkpoint."""
        return {"bytes": self._saved, "digest": self._digest.hexdigest(), "rows": self._rows.decode()}

    def saved(self) -> None:
        """Appends the rows of the checkpoint, which is complete now, to the copy."""
        if self._rows or not self.copy.exists():
            if self.copy.exists() and self.copy.stat().st_size == self._saved:
                atomic.append(self.copy, self._rows, sync=True)
            else:
                atomic.write_bytes(self.copy, self.content())
        self._remember_copied()

    def _remember_copied(self) -> None:
        self._saved += len(self._rows)
        self._digest.update(self._rows)
        self._rows = b""

    def restore(self, state: Mapping[str, Any]) -> str:
        """Returns all rows at a checkpoint, whose entry is ``state``; raises if they are in neither file."""
        self._saved, self._rows = int(state["bytes"]), str(state["rows"]).encode()
        content = self._content(str(state["digest"]))
        self._digest = _new_digest(content[: self._saved])
        return content.decode()

    def repair(self) -> bool:
        """Returns file and copy to the rows of the last checkpoint; returns whether rows of the file were missing."""
        content = self.content()
        found = self.file.read_bytes() if self.file.exists() else b""
        if found != content or not self.file.exists():
            atomic.write_bytes(self.file, content)
        if not self.copy.exists() or self.copy.read_bytes() != content:
            atomic.write_bytes(self.copy, content)
        self._remember_copied()
        self._written, self._waiting = len(content), b""
        return not found.startswith(content)  # further rows are those of rounds that are trained again

    def content(self) -> bytes:
        """Returns all rows."""
        return self._content(self._digest.hexdigest())

    def _content(self, digest: str) -> bytes:
        for file in (self.copy, self.file) if self._saved else ():
            data = _first_bytes(file, self._saved)
            if _new_digest(data).hexdigest() == digest:
                return data + self._rows
        if self._saved or digest != _new_digest().hexdigest():
            raise LostResultsError(f"{self.file} and {self.copy}: rows of finished rounds are missing or changed")
        return self._rows


def _new_digest(data: bytes = b"") -> hashlib.blake2b:
    return hashlib.blake2b(data, digest_size=16)


def _first_bytes(file: Path, count: int) -> bytes:
    try:
        with file.open("rb") as handle:
            return handle.read(count)
    except OSError:
        return b""
