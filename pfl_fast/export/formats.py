"""The formats of exported models: how a file is written, recognised and loaded."""

from __future__ import annotations

import importlib
import json
import logging
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pfl_fast.errors import ConfigError
from pfl_fast.export.portable import ExportError, Portable, in_plain_torch

ABOUT = "pfl_fast.json"  # name of the description inside a file
Logits = Callable[[Tensor], Tensor]
Writer = Callable[[Portable, Tensor, Path, str], None]
Reader = Callable[[Path], tuple[Logits, str]]


def write_program(model: Portable, example: Tensor, file: Path, about: str) -> None:
    """Writes a program of ``torch.export``."""
    with file.open("wb") as stream:
        torch.export.save(model.program(example), stream, extra_files={ABOUT: about})


def read_program(file: Path) -> tuple[Logits, str]:
    """Loads a program of ``torch.export``."""
    extra = {ABOUT: ""}
    with file.open("rb") as stream:
        module = torch.export.load(stream, extra_files=extra).module()
    return module, extra[ABOUT]


def write_torchscript(model: Portable, example: Tensor, file: Path, about: str) -> None:
    """Writes a TorchScript module."""
    program = model.program(example)  # drops unused parts
    with in_plain_torch():
        try:
            script = torch.jit.trace(model, (example,), check_trace=False)
        except RuntimeError as error:
            if "stateless" not in str(error):  # functional_call, as in APFL's prediction
                raise
            script = torch.jit.trace(_traceable(program), (example,), check_trace=False)
    torch.jit.save(script, str(file), _extra_files={ABOUT: about})


def _traceable(program: torch.export.ExportedProgram) -> torch.fx.GraphModule:
    """Returns the graph of a program without what the tracer does not know: checks of sizes, and its name of sizes."""
    module: Any = program.module(check_guards=False)
    for node in module.graph.nodes:
        if node.target is torch.ops.aten.sym_size.int:
            node.target = torch.Tensor.size
    return torch.fx.GraphModule(module, module.graph)


def read_torchscript(file: Path) -> tuple[Logits, str]:
    """Loads a TorchScript module."""
    extra = {ABOUT: ""}
    module = torch.jit.load(str(file), _extra_files=extra)
    text = extra[ABOUT]
    return module, text.decode() if isinstance(text, bytes) else text


def write_onnx(model: Portable, example: Tensor, file: Path, about: str) -> None:
    """Writes an ONNX model with input ``samples`` and output ``logits``."""
    needs("onnx", "onnxscript", "onnxruntime")
    names: dict[str, Any] = {"input_names": ["samples"], "output_names": ["logits"]}
    onnx = torch.onnx.export(model.program(example), dynamo=True, verbose=False, **names)
    assert onnx is not None
    onnx.model.metadata_props[ABOUT] = about
    onnx.save(str(file), external_data=False)


def read_onnx(file: Path) -> tuple[Logits, str]:
    """Opens an ONNX model in onnxruntime."""
    session = needs("onnxruntime")[0].InferenceSession(str(file), providers=["CPUExecutionProvider"])
    name, about = session.get_inputs()[0].name, session.get_modelmeta().custom_metadata_map.get(ABOUT, "")
    return lambda x: torch.from_numpy(session.run(None, {name: x.numpy()})[0]), about


def write_state(model: Portable, example: Tensor, file: Path, about: str) -> None:
    """Writes the tensors of the client's model as safetensors, under the names of the parts."""
    from safetensors.torch import save_file

    model.program(example)  # drops unused parts
    tensors = {name: t.contiguous() for name, t in model.model.client.state_dict().items()}
    save_file(tensors, str(file), metadata={ABOUT: about})


def read_state(file: Path) -> tuple[Logits, str]:
    """Refuses: there is no graph in the file."""
    raise ExportError(
        f"{file}: holds tensors only, and no program to predict with; export with --format export, torchscript or onnx"
    )


@dataclass(frozen=True)
class Format:
    """A format of exported models.

    Attributes:
        title: its name for people.
        suffix: usual suffix of a file.
        write: writes a model, an example of its input, to a file, with a description.
        read: returns the function from samples to logits, and the description.
    """

    title: str
    suffix: str
    write: Writer
    read: Reader


FORMATS = {
    "export": Format("torch.export program", ".pt2", write_program, read_program),
    "torchscript": Format("TorchScript module", ".pt", write_torchscript, read_torchscript),
    "onnx": Format("ONNX model", ".onnx", write_onnx, read_onnx),
    "state": Format("tensors as safetensors", ".safetensors", write_state, read_state),
}


def find_format(name: str) -> Format:
    """Returns a format by its name."""
    if name not in FORMATS:
        raise ConfigError(f"format: must be one of {', '.join(FORMATS)}, got {name!r}")
    return FORMATS[name]


def format_of(file: Path) -> Format:
    """Returns the format of a file, by its contents."""
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            names = {name.rpartition("/")[2] for name in archive.namelist()}
        if "archive_format" in names or "constants.pkl" in names:
            return FORMATS["export" if "archive_format" in names else "torchscript"]
    with file.open("rb") as stream:
        head = stream.read(9)
    if head[8:] == b"{" and int.from_bytes(head[:8], "little") < file.stat().st_size:
        return FORMATS["state"]
    if file.suffix == ".onnx" or head[:1] == b"\x08":  # the first field of an ONNX model is its version
        return FORMATS["onnx"]
    raise ExportError(f"{file}: not an exported model ({', '.join(f.title for f in FORMATS.values())})")


def read(file: Path) -> tuple[Logits, dict[str, Any]]:
    """Returns the function of an exported model from samples to logits, and its description."""
    try:
        with quietly():
            logits, about = format_of(file).read(file)
        return logits, json.loads(about)
    except (ExportError, ConfigError):
        raise
    except Exception as error:  # each reader raises its own
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ExportError(f"{file}: cannot be loaded as an exported model ({reason})") from error


def needs(*packages: str) -> list[Any]:
    """Imports optional packages; raises with the remedy if one is missing."""
    found = []
    for package in packages:
        try:
            found.append(importlib.import_module(package))
        except ImportError as error:
            raise ConfigError(
                f"format: onnx needs the package {package}, which cannot be imported ({error}); "
                "pip install 'pfl-fast[onnx]', or take --format export or torchscript"
            ) from error
    return found


@contextmanager
def quietly() -> Iterator[None]:
    """Hides torch's remarks on its own exporters and deprecated functions."""
    previous = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(previous)
