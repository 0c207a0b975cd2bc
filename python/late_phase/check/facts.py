"""What a report about a GPU must say about the machine."""

import os
import platform
import subprocess

import keras
import tensorflow as tf

import late_phase

# What decides whether TensorFlow finds a GPU, and how it uses it.
VARIABLES = ("CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "NVIDIA_TF32_OVERRIDE", "XLA_FLAGS")
SMI = "name,driver_version,compute_cap,memory.total,memory.used,clocks.max.sm,power.limit"


def facts():
    build = tf.sysconfig.get_build_info()
    return {
        "late_phase": late_phase.__version__,
        "TensorFlow": tf.__version__,
        "Keras": keras.__version__,
        "Python": platform.python_version(),
        "system": platform.platform(),
        "CUDA of TensorFlow": build.get("cuda_version"),
        "cuDNN of TensorFlow": build.get("cudnn_version"),
        "devices": [
            device.name.split("device:")[-1] for device in tf.config.list_physical_devices()
        ],
        "GPUs": [_details(gpu) for gpu in tf.config.list_physical_devices("GPU")],
        "nvidia-smi": nvidia_smi(),
        "library": late_phase.describe().splitlines(),
        "environment": {
            name: value
            for name, value in sorted(os.environ.items())
            if name in VARIABLES or name.startswith("TF_")
        },
    }


def _details(gpu):
    """Name and compute capability, as TensorFlow sees them."""
    details = tf.config.experimental.get_device_details(gpu)
    capability = ".".join(map(str, details.get("compute_capability", ())))
    return {"name": details.get("device_name"), "compute capability": capability}


def nvidia_smi():
    """A dict for each GPU; or why there is none, as text."""
    try:
        said = subprocess.run(
            ["nvidia-smi", f"--query-gpu={SMI}", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=60,
        )
    except FileNotFoundError:
        return "not installed"
    except subprocess.TimeoutExpired:
        return "no answer within a minute"
    if said.returncode:
        return (said.stdout + said.stderr).strip()
    return [
        dict(zip(SMI.split(","), (value.strip() for value in line.split(","))))
        for line in said.stdout.splitlines()
    ]


def peak_bytes(device):
    """The most memory that TensorFlow has had in use on a GPU; None on a CPU."""
    if device.startswith("CPU"):
        return None
    return int(tf.config.experimental.get_memory_info(device)["peak"])
