"""late_phase_cli.corruptions: what the corruptions do to images, and the folder that eval reads."""

import os
import tarfile

import numpy
import pytest

from late_phase_cli import corruptions
from tests.support import cifar_files

N = 12


@pytest.fixture(scope="module")
def images():
    """Soft blobs of colour, as photographs have them; the first image is black."""
    random = numpy.random.default_rng(1)
    smooth = corruptions.gaussian_blur(random.uniform(0, 1, (N, 32, 32, 3)), 3)
    low, high = smooth.min((1, 2, 3), keepdims=True), smooth.max((1, 2, 3), keepdims=True)
    images = numpy.rint(20 + 200 * (smooth - low) / (high - low)).astype(numpy.uint8)
    images[0] = 0
    return images


@pytest.mark.parametrize("name", corruptions.NAMES)
def test_corruptions_are_images_and_a_function_of_the_seed(images, name):
    for severity in range(1, 6):
        one = corruptions.corrupted(images, name, severity, seed=3)
        assert one.dtype == numpy.uint8 and one.shape == images.shape
        assert (one == corruptions.corrupted(images, name, severity, seed=3)).all()
        assert (one[1:] != images[1:]).any()
    other = corruptions.corrupted(images, name, 5, seed=4)
    random = name not in (
        "defocus_blur",
        "zoom_blur",
        "brightness",
        "contrast",
        "pixelate",
        "jpeg_compression",
    )
    assert (other != one).any() == random


# Where severities differ in more than strength, later ones need not be further from the clean
# image.
MONOTONE = [
    name
    for name in corruptions.NAMES
    if name not in ("glass_blur", "frost", "elastic_transform", "motion_blur", "snow")
]


@pytest.mark.parametrize("name", MONOTONE)
def test_higher_severities_are_further_from_the_image(images, name):
    distances = [
        numpy.abs(corruptions.corrupted(images, name, severity) - images.astype(float)).mean()
        for severity in range(1, 6)
    ]
    assert (
        distances == sorted(distances) and distances[0] > 0 and distances[-1] > 1.3 * distances[0]
    ), distances


def test_noise_has_its_strength():
    grey = numpy.full((40, 32, 32, 3), 128, numpy.uint8)
    noise = lambda name, severity: corruptions.corrupted(grey, name, severity) / 255 - 128 / 255
    assert noise("gaussian_noise", 3).std() == pytest.approx(0.08, rel=0.02)
    assert abs(noise("gaussian_noise", 3).mean()) < 1e-3
    assert noise("shot_noise", 3).std() == pytest.approx((128 / 255 / 100) ** 0.5, rel=0.02)
    impulse = corruptions.corrupted(grey, "impulse_noise", 5)
    assert (impulse == 0).mean() == pytest.approx(0.035, rel=0.05) and (
        impulse == 255
    ).mean() == pytest.approx(0.035, rel=0.05)
    assert ((impulse == 0) | (impulse == 255) | (impulse == 128)).all()


def test_formulas_by_hand():
    image = numpy.zeros((1, 32, 32, 3), numpy.uint8)
    image[0, 0, 0] = 100, 50, 25
    image[0, 0, 1] = 250, 125, 0
    # Brightness 0.1: the largest colour 100 becomes 125.5, the others keep their share of it; 250
    # becomes 255; black becomes grey 25.5.
    brighter = corruptions.corrupted(image, "brightness", 2)
    assert brighter[0, 0, 0].tolist() == [126, 63, 31] and brighter[0, 0, 1].tolist() == [
        255,
        128,
        0,
    ]
    assert brighter[0, 31, 31].tolist() == [26, 26, 26]
    # Contrast 0.5: half way to the colour's mean, (100 + 250) / 1024 for red.
    lower = corruptions.corrupted(image, "contrast", 2)
    assert lower[0, 0, 1].tolist() == [125, 63, 0] and lower[0, 0, 0].tolist() == [50, 25, 13]
    # Pixelate by a half: each square of 2 × 2 pixels becomes its mean.
    image = numpy.random.default_rng(0).integers(0, 256, (2, 32, 32, 3))
    squares = image.reshape(2, 16, 2, 16, 2, 3).mean((2, 4)).repeat(2, 1).repeat(2, 2)
    assert 255 * corruptions.pixelate(image / 255, None, 0.5) == pytest.approx(
        squares, abs=1.01
    )  # rows and columns are rounded


def test_blurs_keep_the_mean_and_flat_images():
    flat = numpy.full((2, 32, 32, 3), 77, numpy.uint8)
    for name in (
        "defocus_blur",
        "glass_blur",
        "motion_blur",
        "zoom_blur",
        "elastic_transform",
        "pixelate",
        "contrast",
    ):
        assert (corruptions.corrupted(flat, name, 5) == 77).all(), name
    dot = numpy.zeros((1, 32, 32, 3))
    dot[0, 16, 16] = 1
    blurred = corruptions.defocus_blur(dot, None, 1, 1e-3)
    assert (
        blurred.sum() == pytest.approx(3)
        and blurred[0, 16, 17, 0] == pytest.approx(0.2)
        and blurred[0, 17, 17, 0] == 0
    )


def test_motion_follows_the_line():
    dot = numpy.zeros((1, 32, 32, 1))
    dot[0, 16, 16] = 1
    weights = numpy.exp(-(numpy.arange(5) ** 2) / 2)
    across = corruptions.motion_blurred(dot, 2, 1, numpy.array([0.0]))[0, :, :, 0]
    # A pixel sees what is to its right: the dot is smeared to the left.
    assert across[16, 16:11:-1] == pytest.approx(
        weights / weights.sum()
    ) and across.sum() == pytest.approx(1)
    down = corruptions.motion_blurred(dot, 2, 1, numpy.array([90.0]))[0, :, :, 0]
    assert down[16:11:-1, 16] == pytest.approx(weights / weights.sum())


def test_clouds_fill_their_range():
    clouds = corruptions.plasma(numpy.random.default_rng(0), 4, 2)
    assert (
        clouds.shape == (4, 32, 32)
        and (clouds.min((1, 2)) == 0).all()
        and (clouds.max((1, 2)) == 1).all()
    )
    # Neighbours are alike, more so with a larger decay.
    roughness = lambda decay: numpy.abs(
        numpy.diff(corruptions.plasma(numpy.random.default_rng(0), 50, decay), axis=2)
    ).mean()
    assert roughness(3) < roughness(1.75) < 0.2


def make_run(folder, dataset="cifar10", test_images=0):
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(
        f'program = "cifar"\ndataset = "{dataset}"\ntest_images = {test_images}\n'
    )
    return folder


def test_the_folder_is_made_once_from_the_test_images(tmp_path):
    files = cifar_files.write_cifar(tmp_path / "cifar-10-batches-bin")
    run, cache = make_run(tmp_path / "run"), tmp_path / "cache"
    folder = corruptions.generated(run, tmp_path, cache, 6, 1)
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        [*(f"{name}.npy" for name in corruptions.NAMES), "labels.npy", "source.txt"]
    )
    assert (
        folder / "source.txt"
    ).read_text() == "corruptions generated by late_phase, 6 images, seed 1\n"
    clean, labels = corruptions.test_images("cifar10", files)
    assert numpy.load(folder / "labels.npy").tolist() == labels[:6].tolist() * 5
    fog = numpy.load(folder / "fog.npy")
    assert fog.shape == (30, 32, 32, 3) and fog.dtype == numpy.uint8
    assert (fog[12:18] == corruptions.corrupted(clean[:6], "fog", 3, seed=1)).all()
    made = os.stat(folder / "fog.npy").st_mtime_ns
    assert (
        corruptions.generated(run, files, cache, 6, 1) == folder
        and os.stat(folder / "fog.npy").st_mtime_ns == made
    )
    others = {
        corruptions.generated(run, files, cache, 6, 2),
        corruptions.generated(run, files, cache, 5, 1),
        corruptions.generated(make_run(tmp_path / "short", test_images=4), files, cache, 6, 1),
    }
    assert len(others | {folder}) == 4 == len(list(cache.iterdir()))


def test_images_come_from_archives_too(tmp_path):
    files = cifar_files.write_cifar(tmp_path / "files", "cifar100", test=7, classes=100)
    with tarfile.open(tmp_path / "cifar-100-binary.tar.gz", "w:gz") as archive:
        archive.add(files, "cifar-100-binary")
    for path in (tmp_path, tmp_path / "cifar-100-binary.tar.gz"):
        for ours, expected in zip(
            corruptions.test_images("cifar100", path), corruptions.test_images("cifar100", files)
        ):
            assert (ours == expected).all() and len(ours) == 7


def test_what_is_wrong_is_said(tmp_path):
    run = make_run(tmp_path / "run")

    def complaint(data, images=1000):
        with pytest.raises(corruptions.DataError) as refused:
            corruptions.generated(run, data, tmp_path / "cache", images)
        return str(refused.value)

    missing = complaint(tmp_path)
    assert "`data` must hold test_batch.bin" in missing and f"Received: data={tmp_path}" in missing
    (tmp_path / "test_batch.bin").write_bytes(bytes(3000))
    assert "whole records of 3073 bytes" in complaint(tmp_path)
    (tmp_path / "damaged.tar.gz").write_bytes(b"\x1f\x8b\x08nothing")
    assert "damaged.tar.gz (" in complaint(tmp_path / "damaged.tar.gz")
    assert "`images` must be at least 1" in complaint(tmp_path, 0)
    (run / "config.toml").write_text('program = "enwik8"\n')
    assert "a run of enwik8" in complaint(tmp_path)
    assert not (tmp_path / "cache").exists()
