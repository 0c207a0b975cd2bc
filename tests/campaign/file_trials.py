"""A trial with a damaged file: a copy of a scene, damage to one of its files, and the command that
a user would type next.
"""

import glob
import os
import random
import shutil
import threading

from tests.campaign import damage, file_cases, scenes

SCENES = {"finished": scenes.finished, "in mid-run": scenes.in_mid_run}


class Trials:
    """Makes trials by their numbers, which together with the seed decide everything."""

    def __init__(self, seed, trainings, folder):
        self._seed, self._folder = seed, folder
        self.scenes, self.cases = {}, []
        for training in trainings:
            for state, make in SCENES.items():
                name = f"{training.program} {state}"
                path = os.path.join(folder, name.replace(" ", "-"))
                self.scenes[name] = make(training, path)
                self.cases += file_cases.of_scene(name, training.program, state == "finished")
        self._intact = {}  # (scene, command) -> outcome
        self._lock = threading.Lock()

    def run(self, number, user):
        """(what came of it, in words; what is wrong: "" if nothing)"""
        case = self.cases[number % len(self.cases)]
        draw = random.Random(f"{self._seed}-{number}")
        command = draw.choice(case.commands)
        intact = self._outcome_of_intact(case.scene, command, user)
        scene = self._copy(case.scene, f"trial-{number}")
        (path,) = glob.glob(os.path.join(scene, case.file))
        with open(path, "rb") as file:
            before = file.read()
        kind, after, text = damage.draw_damage(draw, before)
        with open(path, "wb") as file:
            file.write(after)
        files = contents(scene)
        outcome = user.type(command, scene)
        came, wrong = judge(case, command, before, after, intact, outcome)
        if outcome.status and not wrong:
            wrong = changed_files(files, contents(scene))
        name = f"{case.scene}, {case.file}"
        if wrong:
            told = f"trial {number}: {name}, {command}, {kind}: {text}: {wrong}; see {scene}"
            return f"{name}: wrong", told
        shutil.rmtree(os.path.dirname(scene))
        return f"{name}: {came}", ""

    def _outcome_of_intact(self, scene, command, user):
        with self._lock:
            if (scene, command) not in self._intact:
                copy = self._copy(scene, "intact")
                self._intact[scene, command] = user.type(command, copy)
                shutil.rmtree(os.path.dirname(copy))
            return self._intact[scene, command]

    def _copy(self, scene, name):
        copy = os.path.join(self._folder, name, "scene")
        shutil.rmtree(copy, ignore_errors=True)  # of the same trial, made before
        return shutil.copytree(self.scenes[scene], copy)


def contents(scene):
    """The files of a scene; TensorBoard's are not read by any command."""
    found = {}
    for folder, _, names in os.walk(scene):
        for name in names:
            if not name.startswith("events."):
                with open(os.path.join(folder, name), "rb") as file:
                    found[os.path.relpath(file.name, scene)] = file.read()
    return found


def changed_files(before, after):
    """A command that refuses leaves every file as it was."""
    names = sorted(n for n in before.keys() | after.keys() if before.get(n) != after.get(n))
    return f"refused, and yet changed: {', '.join(names)}" if names else ""


def judge(case, command, before, after, intact, outcome):
    """(what came of it, in words; what is wrong: "" if nothing)"""
    if outcome.crash:
        return "", f"{outcome.crash}: {outcome.messages[-2000:]}"
    if (outcome.status, outcome.result) == (intact.status, intact.result):
        if outcome.status == 0:
            return "the same result", ""
        if outcome.says == intact.says:
            return "refused as without the damage", ""
    if outcome.status:
        named = is_named(case, before, after, outcome)
        return "refused by name", "" if named else f"refused without a name: {outcome.says}"
    if intact.status == 0 and case.shows(before, after, command, intact, outcome):
        return "taken as it says", ""
    differ = [name for name in outcome.result if outcome.result[name] != intact.result.get(name)]
    return "", f"accepted, and another {', '.join(differ) or 'status'} in silence"


def is_named(case, before, after, outcome):
    """Whether a refusal is in the form of all messages and names the file, the checkpoint that it
    belongs to, or a setting that it has changed.
    """
    folder, name = os.path.split(case.file)
    names = ["step-0000" if "checkpoint" in folder else name]
    if name == "config.toml":
        names += [f"`{name}`" for name in file_cases.changed_settings(before, after)]
        names += ["as in the checkpoint"]
    says = outcome.says
    return says.startswith("tools/latephase ") and any(one in says for one in names)
