"""Imports point one way: what may import what, and nothing else."""

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import pfl_fast

PACKAGE = Path(pfl_fast.__file__).parent
ENGINE = PACKAGE / "engine"
# A part may import itself and the parts named here.
MAY_IMPORT = {
    "atomic": set(),
    "paths": {"errors"},
    "errors": set(),
    "scratch": set(),
    "trust": {"errors", "own_objects", "paths"},
    "options": {"errors"},
    "randomness": set(),
    "transfer": set(),
    "native": {"atomic", "paths"},
    "ops": {"native"},
    "nn": {"ops"},
    "optim": {"ops"},
    "testing": set(),
    "models": {"ops", "nn", "errors", "randomness"},
    "data": {"atomic", "ops", "paths", "errors", "options", "own_objects", "randomness", "transfer"},
    "methods": {"ops", "nn", "models", "errors", "options", "randomness"},
    "engine": {"atomic", "methods", "models", "nn", "data", "ops", "errors", "options", "randomness", "transfer"},
    "own_objects": {"errors"},
    "notebook": {"errors"},
    "progress": {"engine"},
    "assembly": {"config", "data", "errors", "methods", "models", "options", "own_objects", "randomness"},
    "client_model": {"engine", "methods"},
    "export": {"atomic", "client_model", "data", "errors", "experiment", "ops"},
    "experiment": {
        "assembly",
        "client_model",
        "config",
        "data",
        "engine",
        "errors",
        "methods",
        "models",
        "ops",
        "notebook",
        "options",
        "own_objects",
        "progress",
        "randomness",
        "scratch",
        "trust",
    },
    "comparison": {
        "assembly",
        "atomic",
        "config",
        "data",
        "engine",
        "errors",
        "experiment",
        "methods",
        "models",
        "options",
        "scratch",
        "trust",
    },
    "analysis": {"atomic", "comparison", "config", "engine", "errors", "experiment", "methods", "nn"},
    "report": {"atomic", "comparison", "config", "data", "engine", "errors"},
    "trackers": {"atomic", "engine", "errors"},
    "config": {"atomic", "data", "engine", "errors", "options"},
    "cli": {
        "analysis",
        "assembly",
        "comparison",
        "config",
        "data",
        "engine",
        "errors",
        "experiment",
        "export",
        "methods",
        "models",
        "native",
        "ops",
        "options",
        "paths",
        "progress",
        "report",
        "scratch",
        "trackers",
        "trust",
    },
    "__main__": {"cli"},
    "__init__": {"data", "experiment"},
}
# The same inside the engine: results of clients at the bottom, then state, then training and records, then the round.
ENGINE_MAY_IMPORT = {
    "__init__": set(),
    "allocations": set(),
    "client_results": set(),
    "settings": set(),
    "stopping": set(),
    "sampling": {"settings"},
    "state": {"client_results"},
    "local": {"client_results", "state", "stopping"},
    "ranks": {"stopping"},
    "sharding": {"ranks", "sampling", "state"},
    "results": {"client_results", "sampling", "settings", "state"},
    "memory": {"allocations", "local", "sampling", "settings", "state"},
    "device_memory": {"allocations", "executors", "local", "memory", "sampling", "settings", "state"},
    "kernel_counts": set(),
    "gpu_plan": {"device_memory", "kernel_counts", "local", "memory", "sampling", "settings", "state"},
    "out_of_memory": {"executors", "worker"},
    "worker": {"client_results", "local", "results", "state"},
    "client_work": {"client_results", "local", "results", "state", "worker"},
    "executors": {"local", "results", "state", "stopping", "worker"},
    "probe": {"local", "settings", "state"},
    "mixture": {"client_work", "executors", "results", "sharding", "state", "worker"},
    "round": {
        "client_results",
        "client_work",
        "executors",
        "local",
        "mixture",
        "out_of_memory",
        "ranks",
        "results",
        "sampling",
        "settings",
        "sharding",
        "state",
        "worker",
    },
}


def imports_of(file, package="pfl_fast"):
    """Yields the direct children of ``package`` that a file imports."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == package:
            yield from (alias.name for alias in node.names)
        modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        for module in modules:
            if module.startswith(f"{package}."):
                yield module.removeprefix(f"{package}.").split(".")[0]


@pytest.mark.parametrize("file", sorted(PACKAGE.rglob("*.py")), ids=lambda f: str(f.relative_to(PACKAGE)))
def test_imports_point_one_way(file):
    part = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
    names = {name for name in imports_of(file) if (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").is_file()}
    assert names <= MAY_IMPORT[part] | {part}


@pytest.mark.parametrize("file", sorted(ENGINE.rglob("*.py")), ids=lambda f: str(f.relative_to(ENGINE)))
def test_imports_inside_the_engine_point_one_way(file):
    part = file.relative_to(ENGINE).parts[0].removesuffix(".py")
    assert set(imports_of(file, "pfl_fast.engine")) <= ENGINE_MAY_IMPORT[part] | {part}


@pytest.mark.parametrize("file", sorted(ENGINE.rglob("*.py")), ids=lambda f: str(f.relative_to(ENGINE)))
def test_public_functions_of_the_engine_have_typed_parameters(file):
    """``Any`` would let one layer use everything of another."""
    functions = [n for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.FunctionDef)]
    for function in (f for f in functions if not f.name.startswith("_")):
        arguments = function.args
        for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            annotation = argument.annotation
            assert not (isinstance(annotation, ast.Name) and annotation.id == "Any"), (function.name, argument.arg)


def test_a_class_name_is_used_once():
    trees = [ast.parse(file.read_text()) for file in PACKAGE.rglob("*.py")]
    names = Counter(node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    assert [name for name, count in names.items() if count > 1] == []


def test_importing_the_package_does_not_import_torch():
    """``pfl-fast --help`` and setup.py stay instant."""
    for name in ("__init__.py", "native/build.py", "cli/__init__.py", "cli/doctor.py", "cli/models.py", "paths.py"):
        for node in ast.parse((PACKAGE / name).read_text()).body:
            imported = [a.name for a in node.names] if isinstance(node, (ast.Import, ast.ImportFrom)) else []
            assert "torch" not in imported, name


def test_the_command_line_starts_without_torch():
    program = "import sys, pfl_fast.cli; print(sorted({'torch', 'numpy', 'rich'} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


def test_the_experiment_is_imported_when_asked_for():
    from pfl_fast.experiment import Experiment

    assert pfl_fast.Experiment is Experiment
    with pytest.raises(AttributeError, match="no attribute 'Experiments'"):
        _ = pfl_fast.Experiments
