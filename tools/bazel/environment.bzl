"""What the repository rules share: finding the environment that tools/setup prepared."""

def environment_python(ctx):
    """The interpreter of the prepared environment, or a failure that names the fix."""
    python = ctx.os.environ.get("LATE_PHASE_PYTHON", "")
    if not python:
        fail("LATE_PHASE_PYTHON is not set: run tools/setup first (it writes .bazelrc.local).")
    if not ctx.path(python).exists:
        fail("%s does not exist: run tools/setup again. Received: LATE_PHASE_PYTHON=%s" % (python, python))
    return python

def run(ctx, arguments, what, environment = {}):
    """Runs a program and returns its output, or fails with what it was for and what it printed."""
    result = ctx.execute(arguments, environment = environment)
    if result.return_code != 0:
        fail("%s failed (%s):\n%s%s" % (what, " ".join([str(a) for a in arguments]), result.stdout, result.stderr))
    return result.stdout.strip()
