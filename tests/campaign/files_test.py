"""A small campaign of damaged files and disks (tests/campaign/files.py), and that it finds what is
wrong.
"""

import os
import random
import subprocess

import pytest

from tests.campaign import damage, disk_trials, file_cases, file_trials, files
from tests.campaign.file_cases import Case
from tests.campaign.trainings import Training
from tests.campaign.user_commands import Outcome, User
from tests.support import program_runs

CONFIG = b'program = "enwik8"\nunits = 24\nepochs = 3.0\n'


@pytest.fixture(scope="module")
def training(tmp_path_factory):
    return Training("enwik8 late-phase", str(tmp_path_factory.mktemp("training")))


@pytest.fixture(scope="module")
def trials(training, tmp_path_factory):
    return file_trials.Trials(0, [training], str(tmp_path_factory.mktemp("trials")))


@pytest.fixture(scope="module")
def user():
    somebody = User()
    yield somebody
    somebody.close()


def number_of(trials, file, command, seed=0):
    """The first trial with that file and command."""
    for number, case in enumerate(trials.cases * 100):
        draw = random.Random(f"{seed}-{number}")
        if case.file == file and draw.choice(case.commands) == command:
            return number
    raise AssertionError(f"no trial of {file} with {command}")


def stand_in(monkeypatch, script):
    """Another program in place of the C++ one."""
    monkeypatch.setattr(program_runs, "command", lambda *arguments: ["sh", "-c", script])


# --- What it must not find.


def test_files_and_disks_do_no_harm(training, trials, tmp_path):
    options = files.parse(["--flips", "1", "--disks", "5", "--processes", "1"])
    findings, counts, _ = files.campaign(options, [training], trials, str(tmp_path))
    assert findings == []
    assert counts.total() >= 15


# --- What it must find in damaged files.


@pytest.mark.parametrize(
    "script, complaint",
    [
        ("kill -SEGV $$", "it ends with the status -11"),
        ("echo 'terminate called after throwing' >&2; exit 1", "it says terminate called"),
        ("echo 'Traceback (most recent call last):' >&2; exit 1", "it says Traceback"),
        ("echo 'tools/latephase sample: no' >&2; exit 2", "refused without a name"),
        ("echo 'cannot read step-000000000022' >&2; exit 2", "refused without a name"),
        ("echo another text", "accepted, and another text in silence"),
    ],
)
def test_a_program_that_takes_damage_badly_is_found(trials, user, monkeypatch, script, complaint):
    number = number_of(trials, "run/checkpoint/*/state.index", "sample")
    trials.run(number, user)  # what the intact file gives
    stand_in(monkeypatch, script)
    came, wrong = trials.run(number, user)
    assert complaint in wrong and wrong.startswith(f"trial {number}: enwik8 ")
    assert came.endswith("state.index: wrong")


def test_a_program_that_hangs_is_found(trials, user, monkeypatch):
    number = number_of(trials, "run/checkpoint/*/state.index", "sample")
    trials.run(number, user)
    stand_in(monkeypatch, "exec sleep 100")
    monkeypatch.setattr(user, "_patience", 0.1)
    assert "it hangs" in trials.run(number, user)[1]


def before_the_program(monkeypatch, script):
    """Shell commands before the program; the folder of the run is $1."""
    command = program_runs.command
    monkeypatch.setattr(
        program_runs,
        "command",
        lambda *arguments: [
            *("sh", "-c", f'{script}; shift; exec "$@"', "sh", arguments[1]),
            *command(*arguments),
        ],
    )


def test_other_weights_are_found(trials, user, monkeypatch):
    """A program that takes an older checkpoint in place of the damaged one."""
    number = number_of(trials, "run/checkpoint/*/state.data-00000-of-00001", "eval")
    trials.run(number, user)
    older = f"{trials.scenes['enwik8 in mid-run']}/run/checkpoint"
    before_the_program(monkeypatch, f"rm -r $1/checkpoint; cp -r {older} $1")
    assert "accepted, and another table, json in silence" in trials.run(number, user)[1]


def test_a_refusal_that_writes_is_found(trials, user, monkeypatch):
    number = number_of(trials, "run/checkpoint/*/state.index", "sample")
    trials.run(number, user)
    before_the_program(monkeypatch, "echo >> $1/metrics.jsonl")
    assert "refused, and yet changed: run/metrics.jsonl" in trials.run(number, user)[1]


def test_what_a_file_says_is_told_from_what_it_must_not():
    """Only free settings may differ in silence, and only figures may be shown as they are."""

    def came(before, after, shows, command="eval", result="other"):
        case = Case("scene", "run/config.toml", (command,), shows)
        intact, outcome = (Outcome(0, "", {"table": text}) for text in ("intact", result))
        return file_trials.judge(case, command, before, after, intact, outcome)

    def settings(name, value):
        return CONFIG.replace(name, value)

    shows = file_cases.config_shows
    assert came(CONFIG, settings(b"3.0", b"8.0"), shows) == ("taken as it says", "")
    assert "in silence" in came(CONFIG, settings(b"24", b"25"), shows)[1]
    assert "in silence" in came(CONFIG, settings(b"units = 24\n", b""), shows)[1]
    assert came(CONFIG, settings(b"24", b"25"), shows, "report") == ("taken as it says", "")
    assert came(CONFIG, b"units = 25", shows, result="intact") == ("the same result", "")
    lines = b'{"step":1}\n{"step":2}\n'
    assert came(lines, b'{"step":7}\n', file_cases.metrics_show, "plot")[1] == ""
    assert came(lines, b'{"step":\n\n', file_cases.metrics_show, "plot")[1]
    record = bytes(3073)
    assert came(record, bytes(2) + b"x" * 3071, file_cases.records_show)[1] == ""
    assert came(record, b"\x0b" + bytes(3072), file_cases.records_show)[1]
    assert came(record, bytes(3072), file_cases.records_show)[1]


def test_lines_that_training_adds_must_be_the_same():
    ends = [{"checkpoint": 1, "results": 2, "left": 3, "metrics": [{"step": 7}]} for _ in range(2)]
    ends[1]["metrics"] = [{"step": 8}]
    intact, outcome = (Outcome(0, "", end) for end in ends)
    case = Case("scene", "run/metrics.jsonl", ("resume",), file_cases.metrics_show)
    lines = b'{"step":6}\n', b'{"step":5}\n'
    assert file_trials.judge(case, "resume", *lines, intact, outcome)[1]
    lines = b'{"step":9}\n', b'{"step":5}\n'  # all of them are older
    assert file_trials.judge(case, "resume", *lines, intact, outcome)[1] == ""
    ends[1]["checkpoint"] = 0
    assert file_trials.judge(case, "resume", *lines, intact, outcome)[1]


def test_damage_is_damage_and_can_be_repeated():
    for data in (b"x", b"[1]\n", bytes(1000), CONFIG):
        for number in range(200):
            one, other = (damage.draw_damage(random.Random(number), data) for _ in range(2))
            assert one == other and one[1] != data
    kinds = {damage.draw_damage(random.Random(number), CONFIG)[0] for number in range(200)}
    assert kinds == set(damage.KINDS)


# --- What it must find in disturbed trainings.


@pytest.mark.parametrize(
    "script, complaint",
    [
        ("kill -BUS $$", "status -7"),
        ("echo 'something went wrong' >&2; exit 1", "no clear message"),
        ("echo 'tools/latephase train: sorry' >&2; exit 1", "no clear message"),
        ("exit 0", "it ends with status 0, and [] in its folder"),
        (
            "echo '{' > $1/results.json; echo 'tools/latephase train: File too large' >&2; exit 1",
            "half-written: results.json",
        ),
        (
            "mkdir -p $1/checkpoint/step-000000000003; echo > $1/checkpoint/step-000000000003/"
            "state.index; echo 'tools/latephase train: File too large' >&2; exit 1",
            "half-written: step-000000000003",
        ),
    ],
)
def test_a_training_that_takes_a_disk_badly_is_found(
    training, user, tmp_path, monkeypatch, script, complaint
):
    fault = disk_trials.Limit(training, str(tmp_path), random.Random(0), user)
    os.makedirs(fault.out)
    stand_in(monkeypatch, script.replace("$1", fault.out))
    came, wrong = disk_trials.disturb(fault)
    assert complaint in wrong


def test_a_second_process_that_writes_is_found(training, user, monkeypatch):
    monkeypatch.setattr(disk_trials.Second, "commands", ("meddle",))
    monkeypatch.setattr(User, "meddle", meddle, raising=False)
    wrong = [
        disk_trials.trial(training, "a second process", n, 0, user)[1] for n in range(100, 103)
    ]
    assert any("another metrics" in one for one in wrong)


def meddle(self, scene):
    """Another process that takes the folder for its own."""
    if os.path.exists(f"{scene}/run/metrics.jsonl"):
        with open(f"{scene}/run/metrics.jsonl", "a") as file:
            file.write("{}\n")
    return subprocess.CompletedProcess([], 0, "", ""), dict


def test_every_part_of_an_end_counts(training, monkeypatch):
    assert disk_trials.wrong_end(training, training.whole) == ""
    for what in training.end:
        with monkeypatch.context() as patch:
            patch.setitem(training.end, what, None)
            assert disk_trials.wrong_end(training, training.whole) == f"another {what}"


def test_a_campaign_without_mounts_says_so(training, tmp_path, monkeypatch):
    monkeypatch.setattr(files.disks, "_WAYS", [(["false"], [])])
    faults, notes = files.available_faults(str(tmp_path))
    assert faults == ["a limit on files", "a folder that is removed", "a second process"]
    assert notes == ["Left out, because nothing may be mounted here: a full disk, a read-only disk"]
