"""train: one run directly, several through the scheduler; then the table and the plots."""

from late_phase_cli import interrupt, local_workers, locations, program, results, scheduler
from late_phase_cli.training_output import say


def train(arguments):
    status, messages = program.run(["train", *arguments], saves=True)
    for message in list(messages):
        if "plan" in message:
            status, messages = train_plan(message["plan"])
        elif "local_workers" in message:
            status, messages = local_workers.run(arguments, message["local_workers"])
    for message in messages:
        if "finished" in message:
            results.show(message["finished"], message["folder"])
    return status


def train_plan(plan):
    """Trains the runs of a plan. Returns a status, and what the program reported last."""
    jobs = [
        scheduler.Job(
            run["name"],
            run["folder"],
            run["arguments"],
            after=None if run["ready"] else run["fork_from"],
        )
        for run in plan["runs"]
        if not run["finished"]
    ]
    with scheduler.locked(plan["folder"]) as lock:
        total = len(plan["runs"])
        failed = scheduler.Scheduler(
            jobs, plan["parallel"], plan["threads"], lock, total, test_metrics
        ).run()
    if failed:
        names = "; ".join(job.name for job in failed)
        say(
            f"{locations.command()} train: {names} failed; the states of all runs are kept. "
            f"To try again: {plan['resume']}"
        )
    if interrupt.came:
        interrupt.status()
        say(f"Stopped; the states are saved. To resume: {plan['resume']}")
        raise SystemExit(1 if failed else 0)
    return (1, []) if failed else program.run(plan["collect"], saves=True)


def test_metrics(job):
    """What is printed about a finished run: "test 2.3210 bpc, with SWA 2.3180 bpc"."""
    return job.last_words().removeprefix(f"{job.name}: ")
