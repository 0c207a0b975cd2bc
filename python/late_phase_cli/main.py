"""The command line: every command, what it takes, and the function that does it.

The flags of train, eval, sample and nqp belong to the C++ program and are passed on unchanged. What
a command needs is imported when it runs, so that --help takes no time.
"""

import argparse
import difflib
import os
import sys

from late_phase_cli import interrupt, locations
from late_phase_cli.errors import UserError

# What Bazel builds for a command in the repository.
PROGRAM = ("//tools/program:latephase_program",)
LIBRARY = ("//:_late_phase_ops.so",)
TRAINED = ("enwik8", "cifar")
PASSED_ON = ("train", "eval", "sample", "nqp")  # commands whose flags belong to the program
BENCHMARKS = {
    "batchnorm": "batch normalisation against TensorFlow's ops and memory",
    "enwik8": "a whole training step against its peers",
    "keras": "a Keras training step with members against plain Keras",
    "lstm": "the rank-1 LSTM op against its peers",
    "optimizer": "the optimizer's updates against stock ops and memory",
}


class Formatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog):
        super().__init__(prog, max_help_position=20, width=100)


class Parser(argparse.ArgumentParser):
    def error(self, message):
        self.exit(2, f"{self.prog}: {message}\n\n{self.format_help()}")


def train(options):
    from late_phase_cli import training

    return training.train([options.program, *options.arguments])


def run_program(options):
    """eval, sample, nqp"""
    from late_phase_cli import program, results

    status, messages = program.run([options.command, *options.arguments])
    for message in messages:
        if "finished" in message:
            results.show(message["finished"], message["folder"])
    return status


def plot(options):
    from late_phase_cli import results

    if results.is_sweep(options.folder):
        print("\n".join(results.table(options.folder)))
    for name in results.draw(options.folder):
        print(name)
    return 0


def sweep(options):
    from late_phase_cli import sweep

    return sweep.run(options)


def report(options):
    from late_phase_cli import report

    report.main(options.run, options.out, options.title)
    print(options.out)
    return 0


def advise(options):
    from late_phase_cli import advice_runs

    print(advice_runs.render(options.folder))
    return 0


def in_repository(function):
    """A command of repository.py."""

    def run(options):
        if not locations.repository():
            raise UserError(
                f"{options.command} works only in the late_phase repository, as `tools/latephase "
                f"{options.command}`."
            )
        from late_phase_cli import repository

        return getattr(repository, function)(options)

    return run


def version(options):
    from late_phase_cli import repository

    return repository.version(options)


def gpu_check(options):
    from late_phase_cli import gpu_check

    return gpu_check.run(options)


def completion(options):
    from late_phase_cli import completion

    print(completion.script(make_parser()))
    return 0


def check_program(options):
    """What is wrong with the program that train or sweep was given."""
    if not options.program or options.program.startswith("-"):
        return (
            f"{options.command} needs the name of a training program before its flags: "
            f"{' or '.join(TRAINED)}"
        )
    return (
        None
        if options.program in TRAINED
        else f'there is no training program "{options.program}"; choose {" or ".join(TRAINED)}'
    )


def check_benchmark(options):
    names = ", ".join(BENCHMARKS)
    if not options.benchmark or options.benchmark.startswith("-"):
        return f"bench needs the name of a benchmark: {names}"
    return (
        None
        if options.benchmark in BENCHMARKS
        else f'there is no benchmark "{options.benchmark}"; choose one of {names}'
    )


def wheel_releases(options):
    """The releases of TensorFlow that the wheel is for: as given, or all."""
    known = locations.repository_releases()
    return options.tensorflow.split(",") if options.tensorflow else known


def wheel_targets(options):
    return (*(f"tensorflow={release}" for release in wheel_releases(options)), *LIBRARY, *PROGRAM)


def check_wheel(options):
    if not options.out:
        return "wheel needs --out and the folder for the wheel"
    if not locations.repository():
        return None  # in_repository says so
    known = locations.repository_releases()
    unknown = [release for release in wheel_releases(options) if release not in known]
    return (
        f"`--tensorflow` must be a list of {', '.join(known)}, separated by commas. "
        f"Received: {options.tensorflow}"
        if unknown
        else None
    )


def bench_targets(options):
    """The benchmark of Keras is all Python."""
    return (
        LIBRARY
        if options.benchmark == "keras"
        else (*LIBRARY, f"//tools/bench:bench_{options.benchmark}")
    )


class Commands:
    """The sub-commands of a parser."""

    def __init__(self, parser):
        self.commands = parser.add_subparsers(
            title="commands", dest="command", metavar="COMMAND", parser_class=Parser
        )
        parser.commands = self.commands.choices

    def add(
        self,
        name,
        run,
        help,
        targets=(),
        check=lambda options: None,
        description=None,
        first=None,
        **options,
    ):
        one = self.commands.add_parser(
            name,
            help=help,
            description=description or f"{help[0].upper()}{help[1:]}.",
            allow_abbrev=False,
            formatter_class=Formatter,
            **options,
        )
        one.set_defaults(
            function=run,
            check=check,
            parser=one,
            first=first,
            targets=targets if callable(targets) else lambda options: targets,
        )
        return one

    def add_untouched(self, name, run, help, targets=(), first=None, **options):
        """A command whose arguments argparse leaves alone, whatever they begin with; `first` is the
        name of a required one.
        """
        one = self.add(
            name, run, help, targets, first=first, add_help=False, prefix_chars="\0", **options
        )
        if first:
            one.add_argument(first, nargs="?", help=argparse.SUPPRESS)
        one.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)


def make_parser():
    me = locations.command()
    parser = Parser(
        prog=me,
        allow_abbrev=False,
        formatter_class=Formatter,
        description="Trains, evaluates and compares networks with late-phase weights.",
        epilog=f"`{me} COMMAND --help` describes a command. "
        "The last five work only in the repository.",
    )
    commands = Commands(parser)
    add_program_commands(commands, me)
    add_run_commands(commands, me)
    add_help_commands(commands, me)
    add_repository_commands(commands, me)
    return parser


def add_program_commands(commands, me):
    """What the C++ program does: its flags are its own."""
    programs = ",".join(TRAINED)
    commands.add_untouched(
        "train",
        train,
        "train networks: enwik8 (text) or cifar (images)",
        PROGRAM,
        "program",
        check=check_program,
        usage=f"{me} train {{{programs}}} [FLAG]...",
        epilog=f"`{me} train enwik8 --help` lists the flags of a program.",
    )
    commands.add_untouched(
        "eval", run_program, "evaluate the weights of trained runs, and ensembles of runs", PROGRAM
    )
    commands.add_untouched("sample", run_program, "write text with a trained run", PROGRAM)
    commands.add_untouched(
        "nqp", run_program, "the noisy quadratic problem: table, plot, results", PROGRAM
    )


def add_run_commands(commands, me):
    """What is made from finished runs, and sweeps, which train them."""
    programs = ",".join(TRAINED)
    one = commands.add("plot", plot, "redraw the plots of a run, a sweep or an evaluation")
    one.add_argument(
        "folder",
        metavar="RUN",
        help="the folder of a run, of several runs, of a sweep or of an evaluation",
    )
    add_sweep(
        commands.add(
            "sweep",
            sweep,
            "train with several values of settings and compare",
            PROGRAM,
            check_program,
            SWEEP,
            usage=f"{me} sweep {{{programs}}} --over SETTING=VALUE,... [OPTION]... [FLAG OF "
            "train]...",
        )
    )
    one = commands.add(
        "report",
        report,
        "one HTML page about runs and sweeps: metrics, curves, settings",
        description=REPORT,
    )
    one.add_argument(
        "run",
        nargs="+",
        metavar="RUN",
        help="the folder of a run, of several runs, of a sweep or of an evaluation",
    )
    one.add_argument(
        "--out", default="report.html", metavar="FILE", help="the page (default: report.html)"
    )
    one.add_argument("--title", default="Training runs", help="its title")
    one = commands.add(
        "advise",
        advise,
        "what a run would gain from SWA, accumulation, a lower rate or a late phase",
        description=ADVISE,
    )
    one.add_argument(
        "folder", metavar="RUN", help="the folder of a finished run, or of several runs"
    )


def add_help_commands(commands, me):
    """What helps with the command line itself."""
    one = commands.add(
        "completion",
        completion,
        "a script for your shell that completes commands and flags",
        description="Completion of commands and flags, for ~/.bashrc:\n\n"
        f"  source <({me} completion bash)",
    )
    one.add_argument("shell", choices=["bash"])
    commands.add(
        "version",
        version,
        "versions of the project, TensorFlow, compiler and CUDA; CPU features",
        ("@cuda//:runtime",),
    )
    one = commands.add(
        "gpu-check",
        gpu_check,
        "every op, the programs and Keras on a GPU against the CPU, as a report",
        (*LIBRARY, *PROGRAM),
        description=GPU_CHECK,
    )
    one.add_argument(
        "--out",
        default="gpu-check.json",
        metavar="FILE",
        help="the report (default: gpu-check.json)",
    )


def add_repository_commands(commands, me):
    """What works only in the repository."""
    commands.add_untouched(
        "bench",
        in_repository("bench"),
        f"run a benchmark: {', '.join(BENCHMARKS)}",
        bench_targets,
        "benchmark",
        check=check_benchmark,
        usage=f"{me} bench {{{','.join(BENCHMARKS)}}} [FLAG]...",
        epilog="\n".join(f"  {name:12}{what}" for name, what in BENCHMARKS.items()),
    )
    one = commands.add(
        "cuda-report",
        in_repository("cuda_report"),
        "registers and spills of the CUDA kernels",
        ("//kernels:cuda_reports", *LIBRARY),
    )
    one.add_argument("--write", action="store_true", help="also record them in docs/results")
    one = commands.add(
        "docs", in_repository("docs"), "build the documentation as a website with search"
    )
    one.add_argument("--out", metavar="DIR", help="the folder for the site; created if necessary")
    one.set_defaults(
        check=lambda options: (
            None if options.out else "docs needs --out and the folder for the site"
        )
    )
    commands.add_untouched(
        "python",
        in_repository("python"),
        "run the project's Python, in which `import late_phase` works",
        LIBRARY,
    )
    one = commands.add(
        "wheel",
        in_repository("wheel"),
        "build the packages as a wheel for pip, and check it",
        wheel_targets,
    )
    one.add_argument("--out", metavar="DIR", help="the folder for the wheel; created if necessary")
    one.add_argument(
        "--tensorflow",
        metavar="RELEASES",
        help="the releases of TensorFlow to build for, separated by commas (default: all)",
    )
    one.set_defaults(check=check_wheel)


SWEEP = """Trains a program with several values of its settings, each an ordinary run, and compares
the results.

  sweep cifar --preset convnet-quick --data DIR --out runs/k-sweep --over members=1,2,5,10 --seeds 3

OUT/members-5/seed-0 is a run like any other. One member means the model without late-phase weights
(enwik8: rank1). Several --over are varied one at a time, with the preset's values for the rest, or
as a grid. Flags that are not listed here are passed on to every run: see train PROGRAM --help. The
same command again resumes what was interrupted and skips what has finished; with more values or
seeds, it adds them."""
REPORT = """One HTML page about training runs and sweeps, to read, print or send: it needs no other
file and no network.

  report runs/cifar-convnet runs/k-sweep --out report.html

It shows the test metrics of all runs side by side, the settings in which they differ, curves, cost,
and evaluations (RUN/evaluation) if there are any. The curves of a sweep's runs are shown if the
runs themselves are named."""


ADVISE = """What a finished run would have gained from SWA, accumulation, a lower rate or a late
phase.

  advise runs/enwik8

Says how much noise there is at the end of the training (the loss minus the loss with SWA), whether
the loss has reached a plateau, what the noise law predicts for each, what recorded runs have shown,
and a recommendation. For a run without SWA, it says what to measure. The law holds for Adam; for
image networks, which SGD trains, it says what holds there."""


GPU_CHECK = """Whether late_phase works on this machine's GPU, and how fast: a file to keep, or to
attach to a bug report. It takes some minutes.

Every op is run on the GPU with all its types, by its own kernel and compiled by XLA, and compared
with the CPU; the training programs take a few steps on both, on made-up data; steps of Keras with
and without members are timed in turn. The status is 0 if all agree, 1 if something differs, and 2
if there is no GPU."""


def add_sweep(one):
    count = {"type": int, "metavar": "N"}
    one.add_argument("program", nargs="?", metavar="PROGRAM", help=" or ".join(TRAINED))
    one.add_argument(
        "--over",
        action="append",
        default=[],
        metavar="SETTING=VALUE,...",
        help="a setting and its values; may be repeated",
    )
    one.add_argument(
        "--grid",
        action="store_true",
        help="train every combination of the values, instead of one setting at a time",
    )
    one.add_argument(
        "--seeds",
        default=1,
        **count,
        help="runs of each point, with consecutive seeds (default: 1)",
    )
    one.add_argument("--seed", default=0, **count, help="the first seed (default: 0)")
    one.add_argument("--model", help="the model to train (default: late-phase)")
    one.add_argument(
        "--out", metavar="DIR", help="folder for the sweep (default: runs/PROGRAM-sweep)"
    )
    one.add_argument(
        "--parallel",
        "--jobs",
        **count,
        help="runs at a time, each with its own memory (default: one per core; one with a GPU)",
    )
    one.add_argument(
        "--threads", **count, help="threads of each run (default: the cores divided among the runs)"
    )


def parse(arguments):
    """The options of a command line. For help or an error, prints it and exits."""
    parser = make_parser()
    if not arguments:
        parser.error("a command is missing")
    if arguments[0] not in parser.commands and not arguments[0].startswith("-"):
        alike = difflib.get_close_matches(arguments[0], parser.commands, 1)
        parser.error(
            f'there is no command "{arguments[0]}"'
            + (f"; did you mean {alike[0]}?" if alike else "")
        )
    options, options.flags = parser.parse_known_args(arguments)
    options.typed = arguments
    if options.flags and options.command != "sweep":
        options.parser.error(f"{options.command} does not take {' '.join(options.flags)}")
    if getattr(options, options.first or "", None) in ("-h", "--help"):
        options.parser.print_help()
        raise SystemExit(0)
    complaint = options.check(options)
    if complaint:
        options.parser.error(complaint)
    if asks_for_help(getattr(options, "arguments", [])) and options.command in PASSED_ON:
        from late_phase_cli import program_flags

        command = " ".join(arguments[: 2 if options.command == "train" else 1])
        print(
            program_flags.help_text(command, f"{locations.command()} {command}", Formatter), end=""
        )
        raise SystemExit(0)
    return options


def asks_for_help(arguments):
    """Whether --help is among the flags; what follows -- is none."""
    flags = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "-h" in flags or "--help" in flags


def main(arguments=None):
    interrupt.listen()
    options = parse(sys.argv[1:] if arguments is None else arguments)
    if "LATE_PHASE_TARGETS" in os.environ:
        # tools/latephase asks what to build before it builds anything.
        os.write(
            int(os.environ["LATE_PHASE_TARGETS"]),
            " ".join(["run", *options.targets(options)]).encode(),
        )
        return 0
    try:
        return options.function(options)
    except KeyboardInterrupt:
        return interrupt.status()
    except Exception as error:
        if interrupt.came:  # what failed had been told to end
            return interrupt.status()
        if not isinstance(error, (UserError, OSError)):
            raise
        print(f"{locations.command()} {options.command}: {error}", file=sys.stderr)
        return 2
