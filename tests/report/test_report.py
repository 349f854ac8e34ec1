"""Contents of reports, against the files of the runs."""

import csv
import json
import re
import shutil
from collections import Counter

import pytest

from pfl_fast.data.partition import Partition
from pfl_fast.errors import ConfigError
from pfl_fast.experiment import Experiment
from pfl_fast.report import write
from pfl_fast.report.clients import class_accuracies
from pfl_fast.report.stored_run import read, read_labelled


@pytest.fixture
def page(runs, tmp_path):
    return write(runs, tmp_path / "report.html").read_text()


def records_of(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_values_of_curves_are_those_of_the_runs(runs, page):
    figure = page[page.index("<figcaption>Test accuracy after aggregation") :].partition("</figure>")[0]
    rows = [re.findall(r"<td>(.*?)</td>", row) for row in figure.split("<tr>")[2:]]
    expected = zip(*(records_of(run) for run in runs), strict=True)
    assert rows == [
        [str(number), *(f"{r['test_accuracy_after_agg']:.4f}" for r in pair)] for number, pair in enumerate(expected, 1)
    ]


def test_every_section_has_content(page):
    results = ["overview", "accuracy", "loss", "clients", "classes", "partition", "quantities", "time", "traffic"]
    keys = [*results, "configuration", "environment"]
    assert [key for key in keys if f'<section id="{key}"' not in page] == []
    assert "<figcaption>pir" in page  # recorded by FedCP's loss
    assert page.count("Synthetic stand-in for mnist (") == 2
    assert "do not compare" not in page


def test_page_needs_no_network_and_runs_no_scripts(page):
    assert re.findall(r"<script|https?://|url\(|@import", page) == []
    assert all(address.startswith("data:") for address in re.findall(r"(?:src|href)=\"([^#\"][^\"]*)", page))


def test_class_accuracy_is_over_all_samples_of_a_class(runs):
    run = read(runs[1])
    with (runs[1] / "clients.csv").open(newline="") as file:
        last = [row for row in csv.DictReader(file) if row["round"] == "3"]
    partition = Partition.load(runs[1] / "partition")
    labels = Experiment(
        "local", dataset="mnist", samples=240, image_size=8, clients=3, model="mlp", log=lambda _: None
    ).dataset.y
    right, total = Counter(), Counter()
    for row, index in zip(last, partition.test, strict=True):
        counts = Counter(labels[index].tolist())
        for label, recall in enumerate(json.loads(row["test_per_class_accuracy_after_agg"])):
            right[label] += round((recall or 0) * counts[label])
            total[label] += counts[label]
    expected = {f"class {label}": right[label] / total[label] for label in range(10) if total[label]}
    assert class_accuracies(run) == pytest.approx(expected)


def test_changed_results_of_a_finished_run_are_named(runs, tmp_path):
    shutil.copytree(runs[0], tmp_path / "changed")
    file = tmp_path / "changed" / "metrics.jsonl"
    file.write_text(file.read_text().replace('"round": 1', '"round": 3', 1))
    with pytest.raises(ConfigError, match=r"metrics\.jsonl: rows are missing or changed"):
        read_labelled([tmp_path / "changed"])


def test_runs_that_were_killed_are_read(runs, tmp_path):
    shutil.copytree(runs[0], tmp_path / "killed")
    (tmp_path / "killed" / "summary.json").unlink()
    lines = (runs[0] / "metrics.jsonl").read_text()
    (tmp_path / "killed" / "metrics.jsonl").write_text(lines[:-30])
    first, second = read_labelled([runs[0], tmp_path / "killed"])
    assert (first.state, second.state, second.rounds_done) == ("finished", "interrupted", 2)
    assert first.label != second.label, "equal settings are told apart by their folders"
    assert "2 of 3 (interrupted)" in write([runs[0], tmp_path / "killed"], tmp_path / "a.html").read_text()


def test_text_from_files_is_escaped_and_analyses_join(runs, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(runs[0], run)
    (run / "analysis").mkdir()
    about = {"title": "<script>alert(1)</script>", "caption": "a < b", "columns": ["x"], "rows": [[0.123456], [None]]}
    (run / "analysis" / "one.json").write_text(json.dumps(about))
    with pytest.raises(ConfigError, match=r"one.svg: cannot be read .*make the analysis again"):
        write(run, tmp_path / "a.html")
    (run / "analysis" / "one.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    page = write(run, tmp_path / "a.html", title="<b>").read_text()
    assert "<script" not in page
    assert "<title>&lt;b&gt;</title>" in page
    assert "a &lt; b" in page
    assert "<td>0.1235</td>" in page
    (run / "analysis" / "one.json").write_text("[]")
    with pytest.raises(ConfigError, match=r"one.json: not an analysis"):
        write(run, tmp_path / "a.html")


def test_only_reports_are_replaced(runs, tmp_path):
    file = write(runs[0], tmp_path / "new" / "a.html")
    assert write(runs[1], file) == file
    (tmp_path / "notes.html").write_text("mine")
    with pytest.raises(ConfigError, match="exists and is not a report"):
        write(runs[0], tmp_path / "notes.html")
    assert (tmp_path / "notes.html").read_text() == "mine"
    with pytest.raises(ConfigError, match="is a folder"):
        write(runs[0], tmp_path)
    with pytest.raises(ConfigError, match="holds no run"):
        write(tmp_path, tmp_path / "b.html")
