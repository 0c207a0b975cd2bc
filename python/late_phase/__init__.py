"""Late-phase weights (von Oswald et al., ICLR 2021) for TensorFlow.

Importing the package loads the op library and registers the gradients of its ops:

* `late_phase.ops` has the documented functions, such as `late_phase.ops.rank1_lstm`.
* `late_phase.raw_ops` is the module that `tf.load_op_library` returned: one function per op, with
  its exact signature.
* `late_phase.describe()` says what was loaded and what it runs on; `late_phase.__version__` is the
  version of the package.

`import late_phase.keras` provides the Keras layers and the optimizer;
`import late_phase.checkpoint` turns what the programs have trained into Keras models.
"""

from late_phase import loader

raw_ops = loader.load()
describe = loader.describe
__version__ = loader.build_info()["version"]

# After `raw_ops` is set: these modules use it.
from late_phase import gradients  # noqa: E402,F401  (registers the gradients)
from late_phase import ops  # noqa: E402

__all__ = ["describe", "ops", "raw_ops", "__version__"]
