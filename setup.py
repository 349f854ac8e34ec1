"""Compiles the native library into the package when torch is at hand; otherwise it is compiled on first use."""

import os
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from pfl_fast.native import build  # noqa: E402  imports nothing but the standard library

PACKAGES = [".".join(file.parent.relative_to(HERE).parts) for file in (HERE / "pfl_fast").rglob("__init__.py")]
# The sources are shipped, for the build on first use: every folder of csrc is a package of data files.
CSRC = sorted({".".join(("pfl_fast", *f.parent.relative_to(HERE).parts)) for f in build.source_files(HERE / "csrc")})


class BuildNative(build_ext):
    """Hands over to pfl_fast/native/build.py, the only place that knows how to compile."""

    def run(self) -> None:
        output = (HERE if self.inplace else Path(self.build_lib)) / "pfl_fast" / "native" / "lib"
        if os.environ.get("PFL_FAST_LIBRARY"):
            build.copy(Path(os.environ["PFL_FAST_LIBRARY"]), output)
            return
        try:
            import torch
        except ImportError:
            print("torch is not installed here: the native library will be compiled on first use")
            return
        info = build.build(output, HERE / "build" / "native", build.make_plan(torch.version.cuda))
        if info.cuda_problem:
            print(f"warning: only the CPU kernels are compiled. {info.cuda_problem}", file=sys.stderr)

    def get_outputs(self) -> list[str]:
        return []


class AnyPython(bdist_wheel):
    """Tags the wheel for every Python 3: torch loads the library, not Python."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(
    packages=[*PACKAGES, *CSRC],
    package_dir={"pfl_fast.csrc": "csrc"},
    include_package_data=False,  # MANIFEST.in is for the sdist only
    package_data={
        "pfl_fast": ["py.typed", "recipes/*/*.toml", "report/page.*"],
        **{name: [f"*{end}" for end in build.SOURCE_SUFFIXES] for name in CSRC},
    },
    ext_modules=[Extension("pfl_fast.native.lib", [])],  # marks the wheel as one for this platform
    cmdclass={"build_ext": BuildNative, "bdist_wheel": AnyPython},
)
