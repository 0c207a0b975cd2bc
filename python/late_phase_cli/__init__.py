"""The driver: `tools/latephase` in the repository, `latephase` where the wheel is installed.

Commands, data, tables, plots, sweeps and reports. A C++ program does the training and evaluation;
the driver runs it as a child (program.py). This is a package of its own because `import late_phase`
loads TensorFlow, which none of this needs.
"""
