"""Compiles the native library into the package when torch is at hand; otherwise it is compiled on first use."""

import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from pfl_fast.native import build  # noqa: E402  imports nothing but the standard library

PACKAGES = [".".join(file.parent.relative_to(HERE).parts) for file in (HERE / "pfl_fast").rglob("__init__.py")]
CSRC = ["pfl_fast.csrc", "pfl_fast.csrc.cpu", "pfl_fast.csrc.cuda"]  # shipped, for the build on first use


class BuildNative(build_ext):
    """Hands over to pfl_fast/native/build.py, the only place that knows how to compile."""

    def run(self) -> None:
        try:
            import torch
        except ImportError:
            print("torch is not installed here: the native library will be compiled on first use")
            return
        output = (HERE if self.inplace else Path(self.build_lib)) / "pfl_fast" / "native" / "lib"
        build.build(output, HERE / "build" / "native", build.make_plan(torch.version.cuda is not None))

    def get_outputs(self) -> list[str]:
        return []


setup(
    packages=[*PACKAGES, *CSRC],
    package_dir={"pfl_fast.csrc": "csrc"},
    package_data={"pfl_fast": ["py.typed"], **{name: ["*.h", "*.cuh", "*.cpp", "*.cu"] for name in CSRC}},
    ext_modules=[Extension("pfl_fast.native.lib", [])],  # marks the wheel as one for this platform
    cmdclass={"build_ext": BuildNative},
)
