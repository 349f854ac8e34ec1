"""Commands that use a trained run: export, predict, evaluate."""

import json

import numpy as np
import pytest
from PIL import Image

from tests.cli.conftest import SMALL, read_rounds


@pytest.fixture
def run(cli, tmp_path):
    cli("train", "fedper", *SMALL, "--out", "run", "--quiet")
    Image.fromarray(np.arange(300, dtype=np.uint8).reshape(10, 10, 3)).save(tmp_path / "a.png")
    (tmp_path / "photos").mkdir()
    for name in "bc":
        Image.fromarray(np.full((8, 8), ord(name), np.uint8)).save(tmp_path / "photos" / f"{name}.jpg")
    return tmp_path / "run"


@pytest.mark.usefixtures("run")
def test_a_run_and_its_exported_model_predict_the_same(cli):
    page = cli("export", "run", "--client", 2).output
    assert "predictions equal the trainer's" in page
    assert "images [b, 3, 8, 8] float32 in [0, 1]" in page
    found = json.loads(cli("predict", "fedper-client-2.pt2", "a.png", "photos", "--json").output)
    assert [row["file"] for row in found] == ["a.png", "photos/b.jpg", "photos/c.jpg"]
    of_run = json.loads(cli("predict", "run", "a.png", "photos", "--client", "client 2", "--json").output)
    for one, other in zip(found, of_run, strict=True):
        assert one["class"] == other["class"]
        assert abs(one["probability"] - other["probability"]) < 1e-4
    lines = cli("predict", "fedper-client-2.pt2", "a.png", "photos", "--top", 2).output.splitlines()
    for line, row in zip(lines, found, strict=True):
        assert line.startswith(f"{row['file']:12}  {row['class']} {row['probability']:.3f}")
    images = np.stack([np.asarray(Image.open("a.png").resize((8, 8), Image.Resampling.BILINEAR))])
    np.save("a.npy", images)
    (row,) = json.loads(cli("predict", "fedper-client-2.pt2", "a.npy", "--json").output)
    assert (row["sample"], row["probability"]) == (0, found[0]["probability"])


def test_evaluation_repeats_the_result_of_the_run(cli, run):
    facts = json.loads(cli("evaluate", "run", "--per-class", "--json").stdout)
    record = read_rounds(run)[-1]
    assert facts["test_accuracy"] == record["test_accuracy_after_agg"]
    rows = facts["per_class"].values()
    assert sum(row["samples"] for row in rows) == facts["test_samples"]
    right = sum(row["samples"] * row["recall"] for row in rows if row["samples"])
    assert right / facts["test_samples"] == pytest.approx(facts["test_accuracy"])
    page = cli("evaluate", "run", "--client", 1).output
    assert "client 1" in page
    assert "client 2" not in page
    assert "recall" not in page


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["export", "run"], 2, "--client: which of client 0, client 1, client 2?"),
        (["export", "run", "--client", "clint 1"], 2, "did you mean 'client 1'"),
        (["export", "a.png", "--client", "1"], 2, "holds no run"),
        (["export", "run", "--client", "1", "--out", "missing/m.pt2"], 1, "cannot be written"),
        (["predict", "a.png", "a.png"], 1, "not an exported model"),
        (["predict", "run", "run/config.toml", "--client", "1"], 1, "config.toml"),
        (["predict", "run", "run", "--client", "1"], 2, "has no .jpg"),
        (["predict", "run", "missing.png", "--client", "1"], 2, "no file or folder missing.png"),
    ],
)
@pytest.mark.usefixtures("run")
def test_mistakes_are_named(cli, arguments, code, message):
    assert message in cli(*arguments, exit_code=code).output
