"""SWA in trainings that are killed and resumed, against those that were not."""

import os
import signal
import subprocess
import sys

import keras
import numpy as np
import pytest

import late_phase.keras
from late_phase.keras import Epoch
from tests.support.keras_trainings import data, fit, state, stock_model


class Killed(BaseException):
    pass


class Kill(keras.callbacks.Callback):
    def __init__(self, at, how):
        super().__init__()
        self._at, self._how = at, how

    def on_epoch_end(self, epoch, logs=None):
        if epoch == self._at:
            self._how()


def die():
    raise Killed


def averages(swa, model):
    with swa.averaged():
        return swa.samples, state(model)


@pytest.fixture(scope="module")
def uninterrupted():
    model, swa = stock_model(), late_phase.keras.SWA(Epoch(1), Epoch(2), dataset=data()[0])
    fit(model, [swa], epochs=7)
    return averages(swa, model)


ORDERS = {
    "weights first": lambda backup, swa, kill: [backup, kill, swa],
    "average first": lambda backup, swa, kill: [swa, kill, backup],
}


@pytest.mark.parametrize("at", [2, 4])  # the first sample, and the second
@pytest.mark.parametrize("order", ORDERS)
def test_killed_training_goes_on(order, at, tmp_path, uninterrupted):
    """Killed between the two files of an epoch, whichever comes first."""

    def run(how):
        model, swa = (
            stock_model(),
            late_phase.keras.SWA(
                Epoch(1), Epoch(2), dataset=data()[0], backup_dir=tmp_path / "swa"
            ),
        )
        backup = keras.callbacks.BackupAndRestore(tmp_path / "weights")
        fit(model, ORDERS[order](backup, swa, Kill(at, how)), epochs=7)
        return averages(swa, model)

    with pytest.raises(Killed):
        run(die)
    assert run(lambda: None) == uninterrupted


PROGRAM = """
import os, signal, sys
sys.path[:0] = {path!r}
import keras
import swa_resume_test as t
import late_phase.keras

model = t.stock_model()
folder, data = {folder!r}, t.data()[0]
swa = late_phase.keras.SWA(t.Epoch(1), t.Epoch(2), dataset=data, backup_dir=folder + "/swa")
backup = keras.callbacks.BackupAndRestore(folder + "/weights")
t.fit(model, [swa, backup, t.Kill(5, lambda: os.kill(os.getpid(), signal.SIGKILL))], epochs=7)
"""


def test_process_killed_by_the_system_goes_on(tmp_path, uninterrupted):
    path = [os.path.dirname(os.path.abspath(__file__)), *sys.path]
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(path=path, folder=str(tmp_path))],
        capture_output=True,
        text=True,
    )
    assert run.returncode == -signal.SIGKILL, run.stderr
    model, swa = (
        stock_model(),
        late_phase.keras.SWA(Epoch(1), Epoch(2), dataset=data()[0], backup_dir=tmp_path / "swa"),
    )
    fit(model, [swa, keras.callbacks.BackupAndRestore(tmp_path / "weights")], epochs=7)
    assert averages(swa, model) == uninterrupted


def test_a_file_that_was_being_written_does_not_count(tmp_path, monkeypatch):
    model = stock_model()
    fit(model, [late_phase.keras.SWA(0, dataset=data()[0], backup_dir=tmp_path)], epochs=2)
    before = state(model)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: die())
        with pytest.raises(Killed):
            fit(
                model,
                [late_phase.keras.SWA(0, dataset=data()[0], backup_dir=tmp_path)],
                epochs=3,
                initial_epoch=2,
            )
    assert state(model) != before
    swa = late_phase.keras.SWA(0, dataset=data()[0], backup_dir=tmp_path)
    swa.set_model(model)
    swa.on_epoch_begin(2)
    assert swa.samples == 2
    swa.on_epoch_end(2)
    assert swa.samples == 3 and sorted(os.listdir(tmp_path)) == ["swa-000001.npz", "swa-000002.npz"]


def test_weights_whose_average_was_being_written_are_sampled(tmp_path, monkeypatch):
    """The file is torn, the weights are those of the epoch: its sample is taken on resuming."""
    model = stock_model()
    fit(model, [late_phase.keras.SWA(0, dataset=data()[0], backup_dir=tmp_path)], epochs=2)

    def torn(file, **arrays):
        file.write(b"PK")
        file.flush()
        die()

    with monkeypatch.context() as patch:
        patch.setattr(np, "savez", torn)
        swa = late_phase.keras.SWA(0, dataset=data()[0], backup_dir=tmp_path)
        with pytest.raises(Killed):
            fit(model, [swa], epochs=3, initial_epoch=2)
    swa = late_phase.keras.SWA(0, dataset=data()[0], backup_dir=tmp_path)
    swa.set_model(model)
    swa.on_epoch_begin(3)
    assert swa.samples == 3
    assert sorted(os.listdir(tmp_path)) == ["swa-000001.npz", "swa-000002.npz"]


def test_an_old_average_does_not_enter_a_new_training(tmp_path, uninterrupted):
    for epochs in (5, 7):
        model, swa = (
            stock_model(),
            late_phase.keras.SWA(Epoch(1), Epoch(2), dataset=data()[0], backup_dir=tmp_path),
        )
        fit(model, [swa], epochs=epochs)
    assert averages(swa, model) == uninterrupted
    assert sorted(os.listdir(tmp_path)) == ["swa-000004.npz", "swa-000006.npz"]


@pytest.mark.parametrize("epoch", [2, 8])
def test_a_gap_between_average_and_weights_is_refused(epoch, tmp_path):
    model = stock_model()
    fit(model, [late_phase.keras.SWA(0, dataset=data()[0], backup_dir=tmp_path)], epochs=4)
    kept = sorted(os.listdir(tmp_path))
    message = (
        f"must hold the average after epoch {epoch} for training to resume at epoch {epoch + 1}.*"
        "after epochs 3, 4"
    )
    with pytest.raises(ValueError, match=message):
        fit(
            model,
            [late_phase.keras.SWA(0, dataset=data()[0], backup_dir=tmp_path)],
            epochs=9,
            initial_epoch=epoch,
        )
    assert sorted(os.listdir(tmp_path)) == kept
