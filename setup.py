"""What pyproject.toml cannot say: the wheel holds compiled code, but code that is tied to no version of Python."""

import os

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel

# What Bazel builds.
BUILT = ("python/late_phase/_late_phase_ops.so", "python/late_phase_cli/bin/latephase_program")


class CompiledDistribution(Distribution):
    def has_ext_modules(self):
        return True


class Wheel(bdist_wheel):
    def get_tag(self):
        """TensorFlow loads the library and a child process runs the program; Python does neither: py3-none-PLATFORM."""
        return ("py3", "none", super().get_tag()[2])

    def run(self):
        missing = [path for path in BUILT if not os.path.exists(path)]
        if missing:
            raise SystemExit(
                f"late_phase: there is no {' and no '.join(missing)}. Bazel builds what is compiled: "
                "make a wheel with `tools/latephase wheel --out DIR` and install that."
            )
        super().run()


setup(distclass=CompiledDistribution, cmdclass={"bdist_wheel": Wheel})
