"""Whether the library computes on a device, or under XLA, what its kernels compute on the CPU.

`latephase gpu-check` runs this on a GPU (late_phase_cli/gpu_check.py), in processes of their own
(`python -m late_phase.check`); the tests run it on the CPU.
"""
