"""``--log``, with the real TensorBoard."""

import pytest

from tests.cli.conftest import SMALL, read_rounds


def test_tensorboard_has_the_values_of_all_rounds_also_after_resuming(cli, tmp_path):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    cli("train", "fedcp", *SMALL, "--out", "a", "--log", "tensorboard", "--quiet")
    cli("resume", "a", "--rounds", 3, "--log", "tensorboard", "--quiet")
    found = events.EventAccumulator(str(tmp_path / "a" / "tensorboard")).Reload()
    records = read_rounds("a")
    for tag, value in (
        ("test/accuracy_after_agg", lambda r: r["test_accuracy_after_agg"]),
        ("train/loss", lambda r: r["train_loss"]),
        ("pir", lambda r: r["pir"]),
        ("seconds/local", lambda r: r["seconds_by_part"]["local"]),
    ):
        points = found.Scalars(tag)
        assert [point.step for point in points] == [1, 2, 3]
        assert [point.value for point in points] == pytest.approx([value(record) for record in records], rel=1e-6)
    text = found.Tensors("settings/text_summary")[0].tensor_proto.string_val[0].decode()
    assert "| method | fedcp |" in text


def test_a_missing_package_is_named_before_anything_is_written(cli, tmp_path, monkeypatch):
    monkeypatch.setattr("pfl_fast.trackers.find_spec", lambda _: None)
    page = cli("train", "fedcp", *SMALL, "--log", "wandb", "--log", "mlflow", exit_code=2).output
    assert "pip install 'pfl-fast[wandb,mlflow]'" in page
    assert "'tensorboard', 'wandb', 'mlflow'" in cli("train", "fedcp", "--log", "comet", exit_code=2).output
    assert not (tmp_path / "runs").exists()
