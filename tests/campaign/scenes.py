"""What a user has on disk, and the commands typed next: a scene is a folder with a run and the data
that it was trained on, of which every trial damages a copy.

The same files in every campaign: figures that depend on the time of day are replaced by 1.
"""

import gzip
import hashlib
import io
import json
import os
import shutil
import tarfile
import zipfile

import numpy

from tests.campaign.trainings import TIMES, write_lines
from tests.support import program_runs

# The minibatch after which a training is "in mid-run": it has members, and an average over time.
MIDDLE = {"enwik8": 22, "cifar": 30}
CORRUPTED = 5 * 2  # images in a file of corrupted ones: two of each severity


def finished(training, folder):
    """The scene of a training that has ended, and was evaluated."""
    run = _begin(training, training.whole, folder)
    ended = program_runs.run("eval", run, "--data", f"{folder}/data", "--threads", 1)
    if ended.returncode:
        raise RuntimeError(f"eval fails by itself: {ended.stderr}")
    _place(f"{run}/evaluation/evaluation.json", folder)
    return folder


def in_mid_run(training, folder):
    """The scene of a training that was killed right after a checkpoint."""
    step = MIDDLE[training.program]
    short = f"{folder}-training"
    command = [*training.command(short), "--steps", step]
    training.finish(program_runs.start(*command))
    lines = [line for line in program_runs.read_metrics(training.whole) if line["step"] <= step]
    write_lines(f"{short}/metrics.jsonl", lines)
    shutil.copy(f"{training.whole}/config.toml", short)
    os.remove(f"{short}/results.json")
    _begin(training, short, folder)
    return folder


def _begin(training, run, folder):
    """A copy of the run, without TensorBoard's files, and of its data."""
    out = f"{folder}/run"
    shutil.copytree(run, out, ignore=shutil.ignore_patterns("events.*"))
    lines = [_placed(line) for line in program_runs.read_metrics(out)]
    write_lines(f"{out}/metrics.jsonl", lines)
    if os.path.exists(f"{out}/results.json"):
        _place(f"{out}/results.json", folder)
    data = training.data[1]
    (shutil.copytree if os.path.isdir(data) else shutil.copy)(data, f"{folder}/data")
    facts = {"program": training.program}
    if training.program == "enwik8":
        _add_archives(data, f"{folder}/files")
        with open(data, "rb") as file:
            md5 = hashlib.md5(file.read()).hexdigest()
        facts["text"] = {"size": os.path.getsize(data), "md5": md5}
    else:
        _add_image_files(data, f"{folder}/files")
    with open(f"{folder}/scene.json", "w") as file:
        json.dump(facts, file)
    return out


def _placed(values):
    return {name: 1 if name in TIMES else value for name, value in values.items()}


def _place(path, folder):
    """Rewrites a JSON file without times, nor the name of the scene's folder."""
    with open(path) as file:
        values = json.loads(file.read().replace(folder + "/", ""))
    with open(path, "w") as file:
        file.write(json.dumps(_placed(values), indent=1) + "\n")


def _add_archives(data, folder):
    """The text as a user may have it."""
    os.makedirs(folder)
    shutil.copy(data, f"{folder}/enwik8")
    with open(data, "rb") as file:
        text = file.read()
    with open(f"{folder}/enwik8.gz", "wb") as target:
        target.write(gzip.compress(text, mtime=0))
    with zipfile.ZipFile(f"{folder}/enwik8.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo("enwik8"), text, zipfile.ZIP_DEFLATED)


def _add_image_files(data, folder):
    """The set's archive, corrupted images, and images of another set."""
    os.makedirs(folder)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.add(data, "cifar-10-batches-bin", filter=_timeless)
    with open(f"{folder}/cifar-10-binary.tar.gz", "wb") as target:
        target.write(gzip.compress(packed.getvalue(), 1, mtime=0))
    with open(f"{data}/test_batch.bin", "rb") as file:
        records = numpy.frombuffer(file.read(), numpy.uint8).reshape(-1, 3073)[:CORRUPTED]
    records[:4].tofile(f"{folder}/other.bin")
    os.makedirs(f"{folder}/corrupted")
    images = numpy.ascontiguousarray(records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
    for name in _CORRUPTIONS:
        numpy.save(f"{folder}/corrupted/{name}.npy", images)
    numpy.save(f"{folder}/corrupted/labels.npy", records[:, 0])


def _timeless(member):
    member.mtime = 0
    return member


_CORRUPTIONS = (
    "gaussian_noise shot_noise impulse_noise defocus_blur glass_blur motion_blur zoom_blur snow "
    "frost fog brightness contrast elastic_transform pixelate jpeg_compression"
).split()
