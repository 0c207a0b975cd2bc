"""What pyproject.toml cannot say: the wheel holds compiled code, but code that is tied to no version of Python."""

import os

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel

LIBRARY = "python/late_phase/_late_phase_ops.so"


class CompiledDistribution(Distribution):
    def has_ext_modules(self):
        return True


class Wheel(bdist_wheel):
    def get_tag(self):
        """TensorFlow loads the library, Python does not: py3-none-PLATFORM."""
        return ("py3", "none", super().get_tag()[2])

    def run(self):
        if not os.path.exists(LIBRARY):
            raise SystemExit(f"late_phase: there is no {LIBRARY}. Bazel builds it: make a wheel with `tools/latephase wheel --out DIR` and "
                             "install that.")
        super().run()


setup(distclass=CompiledDistribution, cmdclass={"bdist_wheel": Wheel})
