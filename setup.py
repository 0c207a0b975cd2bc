"""What pyproject.toml cannot say: the wheel holds compiled code, tied to no version of Python."""

import glob

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel

# What Bazel builds, for at least one release of TensorFlow.
BUILT = (
    "python/late_phase/tensorflow_*/_late_phase_ops.so",
    "python/late_phase_cli/bin/tensorflow_*/latephase_program",
)


class CompiledDistribution(Distribution):
    def has_ext_modules(self):
        return True


class Wheel(bdist_wheel):
    def get_tag(self):
        """py3-none-PLATFORM: TensorFlow loads the library, and the program runs by itself."""
        return ("py3", "none", super().get_tag()[2])

    def run(self):
        missing = [path for path in BUILT if not glob.glob(path)]
        if missing:
            raise SystemExit(
                f"late_phase: there is no {' and no '.join(missing)}. Bazel builds that: "
                "make a wheel with `tools/latephase wheel --out DIR` and install that."
            )
        super().run()


setup(distclass=CompiledDistribution, cmdclass={"bdist_wheel": Wheel})
