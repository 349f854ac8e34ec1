"""A short, always equal run of the fuzzer, and proof that it sees what it looks for."""

import pytest

from tests.fuzz import worker
from tests.fuzz.__main__ import Child, fuzz
from tests.fuzz.seeds import LOADERS, Loader

INPUTS = 20 * len(LOADERS)


def test_damaged_files_are_read_or_refused():
    counts, findings = fuzz("tests", inputs=INPUTS)
    assert not findings, "\n".join(findings)
    assert counts.keys() == LOADERS.keys()
    for outcome in ("read", "refused"):
        assert sum(count[outcome] for count in counts.values()) > INPUTS // 10


@pytest.mark.parametrize(
    ("error", "expected"), [(KeyError("x"), "traceback"), (MemoryError(), "oversize"), (None, "read")]
)
def test_errors_are_told_apart(monkeypatch, tmp_path, error, expected):
    def load(_folder):
        if error:
            raise error

    monkeypatch.setitem(LOADERS, "raises", Loader(lambda _folder: None, load))
    assert worker.outcome("raises", tmp_path)[0] == expected


def test_a_crash_is_counted():
    child = Child("tests")
    child.command = [child.command[0], "-c", "import os; input(); os.abort()"]
    assert child.run(0)[1:] == ("crash", "exit code -6")
