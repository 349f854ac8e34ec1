"""Exported models predict as the trainer does, in a process that has no pfl_fast."""

import json
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch

from pfl_fast.errors import ConfigError
from pfl_fast.experiment import Experiment
from pfl_fast.export import client as exporting
from pfl_fast.export import export_client, load_exported, portable_client
from pfl_fast.export.portable import ExportError
from tests.engine import small_experiments as small

# Distinct forms of a prediction: a mask, projections, a mixture of parameters (functional_call),
# prototypes, a whole model as one part.
FORMS = ("fedpick", "fedios", "apfl", "fedproto", "partialfed-fix")
SHAPE = (16, 16, 2)


def trained(method="fedper", out=None, model="mlp", **values):
    values = {**small.METHOD_SETTINGS.get(method, {}), **values}
    running = Experiment(
        method,
        dataset=values.pop("dataset", None) or small.images(60, SHAPE),
        partition=small.partition_of([8] * 4),
        model=model,
        rounds=1,
        batch_size=4,
        lr=0.1,
        out=out,
        log=str,
        **values,
    )
    running.run()
    return running


def samples(count=3):
    return torch.randint(256, (count, 2, 16, 16), generator=torch.Generator().manual_seed(1)).float() / 255


@pytest.mark.parametrize("method", FORMS)
def test_every_form_of_prediction_is_exported_and_pickled(method, tmp_path):
    running = trained(method)
    model, x = running.client(1), samples()
    expected = model((x - 0.5) / 0.25)
    assert torch.equal(pickle.loads(pickle.dumps(model))((x - 0.5) / 0.25), expected)
    for format in ("export", "torchscript") if method == "apfl" else ("export",):
        file = export_client(running, 1, tmp_path / format, format)
        torch.testing.assert_close(load_exported(file).logits(x), expected.detach(), rtol=1e-4, atol=1e-4)


SCRIPT = """
import json, sys
sys.modules["pfl_fast"] = None  # importing it fails
import numpy as np, torch
images = torch.from_numpy(np.load("images.npy")).movedim(-1, 1) / 255
for format in ("export", "torchscript"):
    extra = {"pfl_fast.json": ""}
    if format == "export":
        model = torch.export.load("export", extra_files=extra).module()
    else:
        model = torch.jit.load("torchscript", _extra_files=extra)
    about = json.loads(extra["pfl_fast.json"])
    logits = torch.cat([model(images[:1]), model(images[1:])])
    print(json.dumps([[about["classes"][k] for k in logits.argmax(1).tolist()], about["client"]]))
"""


def test_files_are_loaded_without_the_library_with_names_and_normalisation(tmp_path):
    running = trained("fedcp", model="cnn")
    np.save(tmp_path / "images.npy", running.dataset.x[running.partition.test[1]])
    for format in ("export", "torchscript"):
        export_client(running, "client 1", tmp_path / format, format)
    command = [sys.executable, "-I", "-W", "ignore", "-c", SCRIPT]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    (batch,) = running.data.evaluation("test", 1)
    expected = [running.dataset.classes[k] for k in running.client(1)(batch.x).argmax(1).tolist()]
    assert [json.loads(line) for line in result.stdout.splitlines()] == [[expected, "client 1"]] * 2


def test_onnx_predicts_the_same(tmp_path):
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    running = trained("fedcp")
    file = export_client(running, 2, tmp_path / "model.onnx", "onnx")
    found, x = load_exported(file), samples()
    assert found.about["classes"] == list(running.dataset.classes)
    expected = portable_client(running, 2).logits(x)
    torch.testing.assert_close(found.logits(x), expected.detach(), rtol=1e-4, atol=1e-4)


def test_onnx_without_its_packages_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ConfigError, match=r"pip install 'pfl-fast\[onnx\]'"):
        export_client(trained(), 0, tmp_path / "model.onnx", "onnx")
    assert list(tmp_path.iterdir()) == []


def test_unused_parts_are_left_out(tmp_path):
    from safetensors.torch import load_file

    file = export_client(trained("fedcp"), 0, tmp_path / "tensors", "state")
    parts = {name.split(".")[0] for name in load_file(file)}
    assert parts == {"extractor", "head", "global_head", "cpn", "context"}  # not the frozen extractor of the loss
    with pytest.raises(ExportError, match="tensors only"):
        load_exported(file)


def test_a_file_that_predicts_otherwise_is_not_written(tmp_path, monkeypatch):
    def damaged(model, example, file, about):
        model.model.client.head.bias.add_(0.1)
        write(model, example, file, about)

    format = exporting.FORMATS["export"]
    write = format.write
    monkeypatch.setitem(exporting.FORMATS, "export", type(format)(format.title, format.suffix, damaged, format.read))
    with pytest.raises(ExportError, match="differs from the trainer's predictions"):
        export_client(trained(), 0, tmp_path / "model.pt2")
    assert list(tmp_path.iterdir()) == []


def test_text_and_features_are_exported(tmp_path):
    running = trained(dataset=small.features(60))
    file = export_client(running, 0, tmp_path / "model.pt2")
    x = torch.randn(5, 6)
    torch.testing.assert_close(load_exported(file).logits(x), running.client(0)(x).detach())
    draw = np.random.default_rng(0)
    texts = (draw.integers(0, 30, (60, 7)), draw.integers(0, 3, 60))
    running = trained(dataset=texts, model="fasttext")
    file = export_client(running, 0, tmp_path / "model.pt2")
    x = torch.randint(30, (5, 7))
    torch.testing.assert_close(load_exported(file).logits(x), running.client(0)(x).detach())
