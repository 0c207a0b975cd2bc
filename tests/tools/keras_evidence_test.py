"""tools/bench/keras_evidence.py in small: its forks, its continuation, its choice of settings and
its tables; and the recorded runs.
"""

import dataclasses
import glob
import json
import math
import statistics

import keras
import numpy as np
import pytest

import late_phase.keras
from late_phase_cli import enwik8_data, files, paired
from tests.support.enwik8_text import write_text
from tools.bench import keras_evidence, keras_evidence_table, keras_tasks

RATE = 0.05


def small_digits():
    sizes = {"training": 60, "test": 100, "batch": 10}
    return dataclasses.replace(
        keras_tasks.tasks()["noisy-digits"],
        data=keras_tasks.digits(0.3, **sizes),
        sizes=sizes,
        start=2,
        epochs=4,
        rates=(0.02, RATE),
        ema_momenta=(0.9, 0.5),
        late_phases=((3, 0.0, 1.0), (2, 0.1, 0.5)),
        choosing_seeds=(100, 101),
        test_seeds=(0, 1),
    )


def small_text(path):
    sizes = {"training": 1000, "judged": 32, "window": 8, "batch": 2, "steps": 6}
    return dataclasses.replace(
        keras_tasks.text_task(None),
        data=keras_tasks.text(str(path), **sizes),
        sizes=sizes,
        network=lambda: keras_tasks.transformer(window=8, width=8, heads=2, blocks=1),
        start=2,
        epochs=4,
    )


@pytest.fixture(params=["digits", "text"])
def task(request, tmp_path, monkeypatch):
    monkeypatch.setattr(enwik8_data, "find", lambda path: path)  # which wants the whole of enwik8
    write_text(tmp_path / "text", 2000)
    return small_digits() if request.param == "digits" else small_text(tmp_path / "text")


def rate_of(task):
    return task.rates[-1]


def state_of(task, seed=7):
    data = task.data(seed)
    return data, keras_evidence.start_state(task, data, seed, rate_of(task))


def assert_same(ours, theirs, tolerance=0.0):
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs):
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance)


def unforked(task, data, model, optimizer, seed=7):
    keras_evidence.compiled(data, model, optimizer)
    keras_evidence.train(data, model, (0, task.epochs))
    return model


def new_network(task, seed=7):
    keras.utils.set_random_seed(seed)
    return task.network()


def test_plain_forked_is_plain_unforked(task):
    """Weights, moments and step are those of a training that was never interrupted."""
    data, state = state_of(task)
    whole = unforked(task, data, new_network(task), task.optimizer(rate_of(task)))
    forked = keras_evidence.fork_plain(task, data, state, rate_of(task))
    keras_evidence.train(data, forked, (task.start, task.epochs))
    ours, theirs = keras_evidence.state_of(forked), keras_evidence.state_of(whole)
    assert ours.keys() == theirs.keys() and ours["step"] == theirs["step"] == 6 * task.epochs
    assert_same(ours.values(), theirs.values())


def test_late_phase_forked_is_late_phase_unforked(task):
    """Up to rounding: before the start, fused ops train one member, and Keras's train the fork."""
    data, state = state_of(task)
    rate, late = rate_of(task), {"members": 3, "sigma": 0.1}
    model = late_phase.keras.convert(new_network(task), members=3, weights=task.late_weights)
    whole = unforked(
        task,
        data,
        model,
        late_phase.keras.LatePhaseOptimizer(
            task.optimizer(rate), start=6 * task.start, base_scale=0.5, seed=7, **late
        ),
    )
    forked = keras_evidence.fork_late_phase(task, data, state, rate, 7, gamma=0.5, **late)
    assert forked.optimizer.start == 6 * task.start
    keras_evidence.train(data, forked, (task.start, task.epochs))
    # Rounding of 24 steps; a lost moment or a wrong count is a hundred times as much.
    assert_same(forked.get_weights(), whole.get_weights(), 2e-4)


def test_every_method_begins_with_the_plain_network(task):
    data, state = state_of(task)
    x = data.splits["validation"][0][:20]
    plain = task.network()
    plain.set_weights([state[f"weight {i}"] for i in range(len(plain.get_weights()))])
    expected = plain.predict(x, verbose=0)
    forks = [
        keras_evidence.fork_plain(task, data, state, 0.1, use_ema=use_ema)
        for use_ema in (False, True)
    ]
    forks.append(keras_evidence.fork_accumulation(task, data, state, 0.1, 3, 1.0))
    forks.append(keras_evidence.fork_late_phase(task, data, state, 0.1, 7, 3, 0.0, 1.0))
    for fork in forks:
        assert_same([fork.predict(x, verbose=0)], [expected], 1e-5)


@pytest.mark.parametrize("gamma", [1.0, 1 / 3])
def test_accumulation_is_the_late_phase_without_members(task, gamma):
    """Before members have moved, both take the same step with the base weights."""
    data, state = state_of(task)
    rate, members = rate_of(task), 3
    cycle = dataclasses.replace(data, batches=lambda epoch: data.batches(epoch)[:members])
    plain = keras_evidence.fork_accumulation(task, cycle, state, rate, members, gamma)
    late = keras_evidence.fork_late_phase(task, cycle, state, rate, 7, members, 0.0, gamma)
    before = [v.numpy() for v in plain.trainable_variables]
    for model in (plain, late):
        keras_evidence.train(cycle, model, (task.start, task.start + 1))
    base = [
        i for i, v in enumerate(late.trainable_variables) if not hasattr(v, "late_phase_members")
    ]
    ours, theirs = ([model.trainable_variables[i].numpy() for i in base] for model in (plain, late))
    moved = max(np.abs(one - before[i]).max() for i, one in zip(base, ours))
    assert moved > 1e-3
    assert_same(ours, theirs, 1e-2 * moved)


def test_ema_begins_at_the_start(tmp_path):
    """With a momentum of one the average never moves."""
    task = small_digits()
    data, state = state_of(task)
    model = keras_evidence.fork_plain(task, data, state, RATE, use_ema=True, ema_momentum=1.0)
    keras_evidence.train(data, model, (task.start, task.epochs))
    trained = [v.numpy() for v in model.trainable_variables]  # `fit` has assigned the average
    weights = task.network()
    weights.set_weights([state[f"weight {i}"] for i in range(len(weights.get_weights()))])
    assert_same(trained, [v.numpy() for v in weights.trainable_variables])


def test_what_is_judged():
    """The last weights of plain, not EMA's; SWA's mean of both epochs; statistics of the training
    images.
    """
    task = small_digits()
    data, state = state_of(task)
    settings = {"rate": RATE, "ema_momentum": 0.9}
    found = keras_evidence.run_method(task, data, state, 7, "validation", "plain", settings)
    assert list(found) == ["EMA", "plain", "SWA"]
    model, samples = keras_evidence.fork_plain(task, data, state, RATE), []
    for epoch in (2, 3):
        keras_evidence.train(data, model, (epoch, epoch + 1))
        samples.append([v.numpy() for v in model.trainable_variables])
    for name, weights in (
        ("plain", samples[1]),
        ("SWA", [np.mean(pair, axis=0) for pair in zip(*samples)]),
    ):
        for variable, value in zip(model.trainable_variables, weights):
            variable.assign(value)
        late_phase.keras.reestimate_batch_norm(model, data.training)
        x, y = data.splits["validation"]
        logits = model.predict(x, verbose=0).astype(np.float64)
        scores = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(y)), y]
        assert found[name]["nll"] == pytest.approx(scores.mean(), rel=1e-4)
        assert found[name]["accuracy"] == pytest.approx(100 * np.mean(logits.argmax(axis=1) == y))


def test_cosine_falls_to_nothing_and_rate_is_a_tenth(monkeypatch):
    task, rates = small_digits(), []
    data, state = state_of(task)

    class Rates(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            rates.append(float(self.model.optimizer.learning_rate))

    train = keras_evidence.train
    monkeypatch.setattr(
        keras_evidence, "train", lambda *args: train(*args[:-1], [*args[-1], Rates()])
    )
    for method in ("cosine", "rate/10"):
        keras_evidence.run_method(task, data, state, 7, "validation", method, {"rate": RATE})
    half = [RATE / 2 * (1 + math.cos(math.pi * part)) for part in (0.25, 0.75)]
    assert rates == pytest.approx([*half, RATE / 10, RATE / 10])


def test_wrong_labels_are_in_the_training_images_alone():
    def labels(wrong, seed):
        data = keras_tasks.digits(wrong, training=200, test=100, batch=10)(seed)
        index = np.sort(data.batches(0).ravel() // 9)
        assert (index == np.arange(200)).all()  # every image once
        return data.inputs(9 * index)[1].numpy(), data.splits

    clean, splits = labels(0.0, 5)
    noisy, noisy_splits = labels(0.3, 5)
    assert np.mean(clean != noisy) == pytest.approx(0.3)
    for split in ("validation", "test"):
        assert_same(splits[split], noisy_splits[split])
    assert (splits["test"][0] == labels(0.0, 6)[1]["test"][0]).all()
    assert len(splits["validation"][0]) == 1797 - 200 - 100


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    """A record that was made in two parts: the second continues what was killed."""
    path, task = str(tmp_path_factory.mktemp("record") / "record.json"), small_digits()
    run, done = keras_evidence.run_method, []

    def killed(*args):
        if len(done) == 5:
            raise KeyboardInterrupt
        done.append(args[3:])
        return run(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keras_evidence, "run_method", killed)
        with pytest.raises(KeyboardInterrupt):
            keras_evidence.collect(task, path)
        first = files.read_json(path)["runs"]
        assert len(first) == 5
        patch.setattr(
            keras_evidence, "run_method", lambda *args: done.append(args[3:]) or run(*args)
        )
        whole = keras_evidence.collect(task, path)
        assert whole["runs"][:5] == first and len(whole["runs"]) == len(done)
        keys = [json.dumps(key, sort_keys=True) for key in done]
        assert len(set(keys)) == len(keys)  # none twice
        assert keras_evidence.collect(task, path) == whole and len(whole["runs"]) == len(done)
    return whole


def test_a_record_is_complete(record):
    assert_complete(record)


def test_a_record_of_another_task_is_not_continued(record, tmp_path):
    path = str(tmp_path / "record.json")
    files.write_json(path, record)
    with pytest.raises(SystemExit, match="--out must be a new file, or one of the same task"):
        keras_evidence.collect(dataclasses.replace(small_digits(), epochs=5), path)


def assert_complete(record):
    """All seeds and methods are there, once, with the settings that the validation runs choose and
    no others.
    """
    task, runs = record["task"], record["runs"]
    chosen = keras_evidence_table.chosen(task, runs)
    tests = [run for run in runs if run["split"] == "test"]
    assert [(run["seed"], run["method"]) for run in tests] == [
        (seed, method) for seed in task["test_seeds"] for method in keras_evidence_table.METHODS
    ]
    for run in tests:
        assert run["settings"] == keras_evidence_table.settings_of(run["method"], chosen)
        judged = set(run["figures"])
        assert judged <= set(keras_evidence_table.ROWS) and run["method"] in judged
    assert {run["seed"] for run in runs if run not in tests} == set(task["choosing_seeds"])
    assert not set(task["choosing_seeds"]) & set(task["test_seeds"])


def test_choice_is_that_of_the_lowest_mean(record):
    task, runs = record["task"], record["runs"]

    def mean(name, **settings):
        found = [
            run["figures"][name]["nll"]
            for run in runs
            if run["split"] == "validation"
            and name in run["figures"]
            and settings.items() <= run["settings"].items()
        ]
        assert len(found) == 2
        return statistics.fmean(found)

    rate = min(task["rates"], key=lambda rate: mean("SWA", rate=rate, ema_momentum=0.9))
    momentum = min((0.9, 0.5), key=lambda value: mean("EMA", rate=rate, ema_momentum=value))
    late = min(
        task["late_phases"],
        key=lambda late: mean(
            "late-phase", rate=rate, members=late[0], sigma=late[1], gamma=late[2]
        ),
    )
    assert keras_evidence_table.chosen(task, runs) == {
        "rate": rate,
        "ema_momentum": momentum,
        "members": late[0],
        "sigma": late[1],
        "gamma": late[2],
    }
    lines = "\n".join(keras_evidence_table.render_choice(record))
    assert f"**rate {rate:g}**" in lines and f"**momentum {momentum:g}**" in lines
    assert lines.count("**") == 6


def made_up_record():
    """Three seeds, in which only what is asked for differs."""
    runs = []
    for seed in range(3):
        for method, names in {
            "plain": ("plain", "EMA", "SWA"),
            "accumulation": ("accumulation", "accumulation + SWA"),
            "rate/10": ("rate/10",),
            "cosine": ("cosine",),
            "late-phase": ("late-phase", "late-phase + SWA"),
        }.items():
            figures = {name: {"bpc": 2.0 + seed} for name in names}
            if method == "late-phase":
                figures["late-phase"]["bpc"] -= 0.1 * (seed + 1)
            runs.append({"split": "test", "seed": seed, "method": method, "figures": figures})
    return {"runs": runs}


def test_tables_have_paired_differences():
    record = made_up_record()
    rows = keras_evidence_table.render(record)
    assert len(rows) == 2 + len(keras_evidence_table.ROWS)
    # 0.1, 0.2 and 0.3 lower: their standard deviation is 0.1, and t is 4.303 for three seeds.
    less = f"-0.2000 ± {4.303 * 0.1 / math.sqrt(3):.4f}, better in 3 of 3 seeds"
    assert f"| late-phase | 2.8000 | {less} |" in rows
    assert "| SWA | 3.0000 | +0.0000 ± 0.0000, better in 0 of 3 seeds |" in rows
    (row,) = (
        row for row in keras_evidence_table.render_differences(record) if "members add" in row
    )
    assert row.endswith(f"| {less} |")


RECORDS = sorted(glob.glob("docs/results/keras-evidence-*.json"))


@pytest.mark.parametrize("path", RECORDS)
def test_recorded_runs_are_of_these_tasks(path):
    """What is recorded is what the script would do now, and whole."""
    record = files.read_json(path)
    name = path.removeprefix("docs/results/keras-evidence-").removesuffix(".json")
    assert record["task"] == keras_tasks.tasks()[name].describe()
    assert_complete(record)
    assert record["task"]["test_seeds"] == [0, 1, 2, 3, 4]
    assert record["task"]["choosing_seeds"] == [100, 101, 102]


def page():
    """docs/comparison.md, in one line."""
    with open("docs/comparison.md") as file:
        return " ".join(file.read().split())


class Shown:
    """What a record shows of the test data, and how the page writes it."""

    def __init__(self, task):
        self._runs = files.read_json(f"docs/results/keras-evidence-{task}.json")["runs"]

    def less(self, ours, theirs, figure="accuracy"):
        pair = [
            keras_evidence_table.values(self._runs, "test", name, figure) for name in (ours, theirs)
        ]
        return paired.difference(*pair, lower_is_better=figure != "accuracy")

    def over_plain(self, figure="accuracy"):
        return {name: self.less(name, "plain", figure) for name in keras_evidence_table.ROWS[1:]}


def words(difference, digits=2):
    return difference.number(digits).replace("-", "−")


def is_sure(difference):
    return abs(difference.mean) > difference.half_width


def test_the_page_says_what_the_digits_show():
    """The sentences below the tables of docs/comparison.md."""
    shown, text = Shown("digits"), page()
    gains = shown.over_plain()
    assert all(gain.won == gain.seeds == 5 for gain in gains.values())
    assert "All methods beat plain training in accuracy in all five seeds, SWA by the most" in text
    assert max(gains, key=lambda name: gains[name].mean) == "SWA"
    assert f"SWA by the most: {words(gains['SWA'])[1:]} points" in text
    members = shown.less("late-phase", "accumulation")
    with_swa = shown.less("late-phase + SWA", "accumulation + SWA")
    over_swa = shown.less("late-phase + SWA", "SWA")
    assert not is_sure(members) and not is_sure(with_swa) and over_swa.mean < 0
    assert (
        f"cannot be told from zero: {words(members)} points, and with SWA {words(with_swa)}."
        in text
    )
    assert f"Late-phase + SWA is no better than SWA: {words(over_swa)}." in text


def test_the_page_says_what_the_wrong_labels_show():
    shown, text = Shown("noisy-digits"), page()
    for figure in ("accuracy", "nll"):
        assert all(gain.won == gain.seeds == 5 for gain in shown.over_plain(figure).values())
    assert "All methods beat plain training in accuracy and in NLL, in all five seeds." in text
    members = shown.less("late-phase", "accumulation", "nll")
    with_swa = shown.less("late-phase + SWA", "accumulation + SWA", "nll")
    accuracy = shown.less("late-phase", "accumulation")
    assert is_sure(members) and members.won == 5 and is_sure(with_swa) and not is_sure(accuracy)
    assert f"{words(members, 4)}, in all five seeds, and with SWA {words(with_swa, 4)};" in text
    assert f"the gain, {words(accuracy)} points, may be chance" in text
    gains = shown.over_plain()
    assert max(gains, key=lambda name: gains[name].mean) == "late-phase + SWA"
    ema, swa = (shown.less("late-phase + SWA", name) for name in ("EMA", "SWA"))
    assert not is_sure(ema) and not is_sure(swa)
    assert f"its lead over EMA ({words(ema)}) and SWA ({words(swa)}) may be chance" in text
    higher = shown.less("late-phase + SWA", "EMA", "nll")
    assert is_sure(higher) and higher.mean > 0
    assert f"its NLL is higher than EMA's by {words(higher, 4)[1:]}:" in text


def test_the_page_says_what_the_text_shows():
    shown, text = Shown("text"), page()
    members = shown.less("late-phase", "accumulation", "bpc")
    with_swa = shown.less("late-phase + SWA", "accumulation + SWA", "bpc")
    assert not is_sure(members) and is_sure(with_swa) and with_swa.mean > 0 and with_swa.won == 0
    assert (
        f"late-phase minus accumulation is {words(members, 4)} BPC, and with SWA "
        f"{words(with_swa, 4)}, a little worse in all five seeds." in text
    )
    gains = shown.over_plain("bpc")
    late, swa, cosine, ema = (
        words(gains[name], 4)[1:] for name in ("late-phase", "SWA", "cosine", "EMA")
    )
    assert (
        f"improves on plain training by {late}, SWA by {swa}, and a rate that falls to zero by "
        f"{cosine}. EMA is the best: {ema}." in text
    )
    assert all(gains[name].mean < 0 for name in ("late-phase", "SWA", "cosine"))
    assert min(gains, key=lambda name: gains[name].mean) == "EMA"
    for name in ("accumulation", "late-phase"):
        worse = shown.less(f"{name} + SWA", name, "bpc")
        assert is_sure(worse) and worse.mean > 0
    assert "SWA makes accumulation and the late phase worse" in text
    with open("docs/when.md") as file:
        assert (
            "With SWA on top, the late phase of a small Transformer in Keras ends behind SWA "
            "alone, EMA and a falling rate in each of five seeds" in " ".join(file.read().split())
        )
    for name in ("EMA", "SWA", "cosine"):
        assert shown.less("late-phase + SWA", name, "bpc").won == 0
        assert shown.less("late-phase", name, "bpc").won == 0
