"""The driver: `tools/latephase` in the repository, `latephase` where the wheel is installed.

Commands, data, tables, plots, sweeps and reports. Training and evaluation are done by a C++ program,
which the driver runs as a child (program.py). A package of its own, because `import late_phase`
loads TensorFlow, which none of this needs.
"""
