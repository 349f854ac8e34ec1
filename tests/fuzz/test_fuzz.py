"""A short, always equal run of the fuzzer, and proof that it sees what it looks for."""

import sys

import pytest

from tests.fuzz import __main__, worker
from tests.fuzz.__main__ import Campaign, Child
from tests.fuzz.seeds import LOADERS, Loader

INPUTS = 20 * len(LOADERS)


def test_damaged_files_are_read_or_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(__main__, "MEMORY", tmp_path)
    campaign = Campaign("tests")
    campaign.run(iter(range(INPUTS)), jobs=2)
    assert not list(tmp_path.iterdir())
    assert not campaign.findings, "\n".join(campaign.findings)
    assert campaign.counts.keys() == LOADERS.keys()
    assert campaign.total.total() == INPUTS
    assert all(campaign.total[outcome] > INPUTS // 10 for outcome in ("read", "refused"))


@pytest.mark.parametrize(
    ("error", "expected"), [(KeyError("x"), "traceback"), (MemoryError(), "oversize"), (None, "read")]
)
def test_errors_are_told_apart(monkeypatch, tmp_path, error, expected):
    def load(_folder):
        if error:
            raise error

    monkeypatch.setitem(LOADERS, "raises", Loader(lambda _folder: None, load))
    assert worker.outcome("raises", tmp_path)[0] == expected


CHILD = """
import json, os, time
for number in input().split():
    if number == "1":
        {fault}
    print(json.dumps([int(number), "idx", "read", ""]), flush=True)
"""


@pytest.mark.parametrize(
    ("fault", "expected"), [("os.abort()", ("crash", "exit code -6")), ("time.sleep(60)", ("hang", "more than 1 s"))]
)
def test_a_crash_and_a_hang_count_for_one_input(monkeypatch, fault, expected):
    monkeypatch.setattr(__main__, "HANG", 1.0)
    child = Child("tests", "")
    child.command = [sys.executable, "-c", CHILD.format(fault=fault)]
    answers = {number: outcome for number, _, *outcome in child.run([0, 1, 2])}
    child.stop()
    assert answers == {0: ["read", ""], 1: list(expected), 2: ["read", ""]}
