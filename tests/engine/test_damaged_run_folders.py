"""Files of a run folder that are damaged or deleted are made again, or named; no round is lost or counted twice."""

import json
import random
import shutil
from dataclasses import replace

import pytest

from pfl_fast.comparison.results import read_run
from pfl_fast.data.partition import Partition
from pfl_fast.engine.results.protocol import find_protocol
from pfl_fast.engine.state import checkpoint
from pfl_fast.errors import PflFastError
from tests.engine import faulty_disk as faulty

pytestmark = pytest.mark.usefixtures("one_core")


@pytest.fixture(scope="module")
def whole(tmp_path_factory, one_core):  # noqa: ARG001
    """Files of an uninterrupted run."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    faulty.train(faulty.begin(folder))
    return faulty.contents(folder)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory, one_core):  # noqa: ARG001
    """Folder of the same run, stopped after two rounds."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    experiment = faulty.begin(folder)
    rounds = experiment.rounds()
    next(rounds), next(rounds)
    experiment.listeners[0].interrupted(experiment)
    experiment.close()
    return folder


@pytest.fixture
def run(stopped, tmp_path):
    """A copy of the stopped run."""
    return shutil.copytree(stopped, tmp_path / "run")


def flip(file, position):
    content = bytearray(file.read_bytes())
    content[position // 8] ^= 1 << position % 8
    file.write_bytes(content)


FILES = ["metrics.jsonl", "clients.csv", "summary.json", "config.toml", "partition/indices.npy"]
FILES += ["partition/partition.json", "checkpoint/metrics.jsonl", "checkpoint/clients.csv"]
FILES += [f"checkpoint/round-00000{n}.{end}" for n in (1, 2) for end in ("json", "safetensors")]


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_in_any_file_is_repaired_or_named(run, stopped, whole, name):
    """A changed setting is named; everything else leads to the files of an uninterrupted run."""
    size, draw, named = 8 * (stopped / name).stat().st_size, random.Random(name), 0
    for position in [0, *draw.sample(range(size), 9), size - 1]:
        shutil.rmtree(run)
        shutil.copytree(stopped, run)
        flip(run / name, position)
        try:
            faulty.train(faulty.resume(run))
        except PflFastError as error:
            assert name == "config.toml", error  # noqa: PT017
            assert "config.toml was changed since the run wrote it" in str(error)  # noqa: PT017
            named += 1
        else:
            assert faulty.contents(run) == whole, (name, position)
    assert named < 9


@pytest.mark.parametrize("emptied", [False, True], ids=["deleted", "emptied"])
@pytest.mark.parametrize("name", FILES)
def test_a_deleted_or_emptied_file_is_made_again(run, whole, name, emptied):
    messages = []
    (run / name).write_text("") if emptied else (run / name).unlink()
    faulty.train(faulty.resume(run, log=messages.append))
    assert faulty.contents(run) == whole
    said = not name.startswith(("summary", "checkpoint/metrics", "checkpoint/clients", "checkpoint/round-000001"))
    silent = name == "checkpoint/round-000002.json" and not emptied
    assert bool(messages) == (said and not silent), messages
    assert all(name.split("/")[0] in message for message in messages)


def test_the_partition_of_another_run_is_replaced(run, whole):
    found = Partition.load(run / "partition")
    parts = {split: getattr(found, split)[::-1] for split in ("train", "test", "validation")}
    replace(found, **parts).save(run / "partition")
    messages = []
    faulty.train(faulty.resume(run, log=messages.append))
    assert any("partition: missing or damaged; it is made again" in message for message in messages)
    assert faulty.contents(run) == whole


def test_a_deleted_checkpoint_folder_is_refused_and_the_results_stay(run):
    before = {name: (run / name).read_bytes() for name in ("metrics.jsonl", "clients.csv")}
    shutil.rmtree(run / "checkpoint")
    with pytest.raises(
        PflFastError, match=r"no checkpoint(.|\n)*put back(.|\n)*train again with `pfl-fast train --config"
    ):
        faulty.resume(run)
    assert {name: (run / name).read_bytes() for name in before} == before
    assert not (run / "run.lock").exists()


def test_a_run_that_was_ended_before_its_first_checkpoint_begins_again(tmp_path, whole):
    faulty.begin(tmp_path / "run").close()
    assert not (tmp_path / "run" / "checkpoint").exists()
    faulty.train(faulty.resume(tmp_path / "run"))
    assert faulty.contents(tmp_path / "run") == whole


def test_results_lost_in_both_places_are_named(run):
    faulty.train(faulty.resume(run))  # now both checkpoints come after the first row
    for file in (run / "metrics.jsonl", run / "checkpoint" / "metrics.jsonl"):
        flip(file, 40)
    expected = (run / "metrics.jsonl").read_bytes()
    with pytest.raises(
        PflFastError, match=r"no checkpoint can be used(.|\n)*metrics\.jsonl(.|\n)*are missing or changed"
    ):
        faulty.resume(run)
    assert (run / "metrics.jsonl").read_bytes() == expected


@pytest.mark.parametrize("name", ["load_file", "file_digest"])
def test_any_failure_to_read_falls_back_to_the_checkpoint_before(run, whole, monkeypatch, name):
    really, messages = getattr(checkpoint, name), []

    def fail(file):
        if "round-000002" in str(file):
            raise OSError(24, "Too many open files")
        return really(file)

    monkeypatch.setattr(checkpoint, name, fail)
    again = faulty.resume(run, log=messages.append)
    monkeypatch.undo()
    assert again.state.rounds_done == len(again.records) == 1
    assert "round-000002.json: cannot be used" in messages[0]
    assert "Too many open files" in messages[0]
    faulty.train(again)
    assert faulty.contents(run) == whole


def test_checkpoints_that_were_not_used_are_removed_when_their_rounds_are_trained_again(run):
    shutil.copy(run / "checkpoint" / "round-000002.json", run / "checkpoint" / "round-000009.json")
    again = faulty.resume(run)
    again.run()
    assert not (run / "checkpoint" / "round-000009.json").exists()
    assert (again.state.rounds_done, len(again.records)) == (3, 3)


def test_rows_of_rounds_without_a_checkpoint_are_replaced_when_the_rounds_are_trained_again(run, whole):
    later = json.dumps({**json.loads((run / "metrics.jsonl").read_text().splitlines()[-1]), "round": 3})
    with (run / "metrics.jsonl").open("a") as file:
        file.write(later + "\n" + later[:20])
    before = (run / "metrics.jsonl").read_text()
    again = faulty.resume(run)
    assert (run / "metrics.jsonl").read_text() == before, "opening a run changes nothing"
    faulty.train(again)
    assert faulty.contents(run) == whole


@pytest.mark.parametrize("name", ["metrics.jsonl", "clients.csv"])
def test_damaged_results_of_a_finished_run_are_not_compared(run, name):
    faulty.train(faulty.resume(run))
    protocol = find_protocol("fedcp")
    accuracy = read_run(run, protocol).measured.accuracy
    flip(run / name, 8 * 300)
    with pytest.raises(PflFastError, match=rf"{name}: rows are missing or changed(.|\n)*makes the file again"):
        read_run(run, protocol)
    faulty.train(faulty.resume(run))
    assert read_run(run, protocol).measured.accuracy == accuracy
