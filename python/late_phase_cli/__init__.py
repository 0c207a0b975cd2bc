"""The Python side of tools/latephase: data, tables, plots, sweeps and reports.

Apart from late_phase, whose import loads TensorFlow: none of this needs it.
"""
