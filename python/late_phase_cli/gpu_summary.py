"""What gpu-check prints: the summary of a report, or why there is none."""

from late_phase_cli import text_table

PROBLEMS = 10  # that are printed; the file has them all
SMI_MISSING = "not installed"


def render(report, path):
    """The lines of a summary. `path` is where the report is."""
    facts = report["facts"]
    lines = [
        f"late_phase {facts['late_phase']}, TensorFlow {facts['TensorFlow']} (CUDA "
        f"{facts['CUDA of TensorFlow']}, cuDNN {facts['cuDNN of TensorFlow']}), Keras "
        f"{facts['Keras']}, Python {facts['Python']}",
        device_line(report["device"], facts),
        "",
        *ops_table(report["ops"]),
        "",
        *steps_table(report["steps"]),
        "",
    ]
    problems = report["problems"]
    if problems:
        lines.append(f"{len(problems)} {'problem' if len(problems) == 1 else 'problems'}:")
        lines += [f"  {one['where']}: {one['problem']}" for one in problems[:PROBLEMS]]
        if len(problems) > PROBLEMS:
            lines.append(f"  and {len(problems) - PROBLEMS} more, which are in the report")
    else:
        lines.append(f"{report['device']} agrees with the CPU.")
    return [*lines, f"The report: {path}"]


def device_line(device, facts):
    """ "GPU:0: NVIDIA A100, compute capability 8.0, driver 580.65" """
    parts = []
    if device.startswith("GPU") and facts["GPUs"]:
        seen = facts["GPUs"][int(device.partition(":")[2])]
        parts += [str(seen["name"]), f"compute capability {seen['compute capability']}"]
    smi = facts["nvidia-smi"]
    if isinstance(smi, list) and smi:
        parts.append(f"driver {smi[0]['driver_version']}, {smi[0]['memory.total']}")
    return f"{device}: {', '.join(parts) or 'nothing is known about it'}"


def ops_table(ops):
    """The largest differences from the CPU of all ops together, and how many cases are wrong."""
    tolerance = ops.get("tolerance", {})
    heads = ["largest difference from the CPU", "ops", "cases", "wrong", *tolerance]
    rows = [["allowed", "", "", "", *(f"{allowed:.1e}" for allowed in tolerance.values())]]
    for by, found in ops["by"].items():
        row = [by, *(str(one) for one in (len(found["ops"]), found["cases"], found["wrong"]))]
        for name in tolerance:
            worst = [types[name]["size"] for types in found["ops"].values() if name in types]
            row.append(f"{max(worst):.1e}" if worst else "–")
        rows.append(row)
    return text_table.render(heads, rows)


def steps_table(steps):
    """Milliseconds of a training step, the shortest of many, and the ratios of Keras's."""
    heads = [
        "a training step, ms",
        "C++ program",
        "Keras with members",
        "Keras",
        "ratio",
        "the same by XLA",
        "Keras by XLA",
        "ratio",
    ]
    rows = []
    for name, measured in steps.items():
        seconds = measured["Keras"].get("seconds", {})
        of_program = measured["program"].get("run", {}).get("milliseconds")
        row = [name, "–" if of_program is None else f"{of_program:.2f}"]
        for suffix in ("", ", XLA"):
            late, plain = (
                min(seconds.get(kind + suffix, []), default=None)
                for kind in ("late_phase", "Keras")
            )
            row += ["–" if one is None else f"{1000 * one:.2f}" for one in (late, plain)]
            row.append(f"{late / plain:.2f}" if late and plain else "–")
        rows.append(row)
    return text_table.render(heads, rows)


def no_device(device, facts, printed):
    """Why there is nothing to check."""
    lines = [
        f"TensorFlow must see {device}. It sees {', '.join(facts['devices'])} only. Usual causes:"
    ]
    hidden = facts["environment"].get("CUDA_VISIBLE_DEVICES")
    if hidden is not None:
        lines.append(f'- CUDA_VISIBLE_DEVICES="{hidden}" hides it')
    if facts["nvidia-smi"] == SMI_MISSING:
        lines.append("- there is no NVIDIA driver, or no GPU: nvidia-smi is not installed")
    elif isinstance(facts["nvidia-smi"], str):
        lines.append(f"- the driver does not work: nvidia-smi says: {facts['nvidia-smi']}")
    if facts["CUDA of TensorFlow"] is None:
        lines.append(f"- TensorFlow {facts['TensorFlow']} was built without CUDA")
    else:
        lines.append(
            f"- CUDA {facts['CUDA of TensorFlow']} and cuDNN {facts['cuDNN of TensorFlow']} are "
            "not installed: pip install 'tensorflow[and-cuda]'"
        )
    said = [line for line in printed if "GPU" in line or "cuda" in line.lower()]
    if said:
        lines += ["What TensorFlow says:", *said]
    return "\n".join(lines)
