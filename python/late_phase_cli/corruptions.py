"""Corrupted test images for eval --corrupt.

Fifteen corruptions of five severities each, in the layout in which CIFAR-10-C is published:
NAME.npy, uint8 [5·n, 32, 32, 3], severity 1 first, and labels.npy. Written from the definitions of
Hendrycks and Dietterich ("Benchmarking neural network robustness to common corruptions and
perturbations", ICLR 2019) with their severities for CIFAR. They are not the published arrays: the
noise is drawn afresh, sampling between pixels differs in detail, and frost, which lays photographs
of ice over an image, uses a generated texture instead.

A run's first test images are used; the folder is named after them, their number, the seed and this
file, and is made once.
"""

import hashlib
import io
import pathlib
import sys
import tarfile
import tomllib

import numpy

from late_phase_cli import extras, files
from late_phase_cli.errors import UserError

Image = extras.need("PIL.Image", "corruptions", "generating corrupted images")
ndimage = extras.need("scipy.ndimage", "corruptions", "generating corrupted images")

SIDE = 32
CHUNK = 500  # images at a time

# --- Shared by several corruptions. Images are float64 [n, 32, 32, 3] in [0, 1].


def gaussian_blur(images, sigma):
    return ndimage.gaussian_filter(images, sigma, axes=(1, 2), mode="reflect")


def sampled(images, rows, columns):
    """Values between pixels by bilinear interpolation, mirrored at the edges. rows, columns: [n,
    32, 32].
    """

    def mirrored(place):
        place = numpy.mod(place, 2 * SIDE - 2)
        return numpy.minimum(place, 2 * SIDE - 2 - place)

    rows, columns = mirrored(rows), mirrored(columns)
    top, left = (
        numpy.minimum(rows.astype(int), SIDE - 2),
        numpy.minimum(columns.astype(int), SIDE - 2),
    )
    down, right = (rows - top)[..., None], (columns - left)[..., None]
    image = numpy.arange(len(images))[:, None, None]
    upper = images[image, top, left] * (1 - right) + images[image, top, left + 1] * right
    lower = images[image, top + 1, left] * (1 - right) + images[image, top + 1, left + 1] * right
    return upper * (1 - down) + lower * down


def zoomed(images, factor):
    """Enlarged around the centre, by bilinear interpolation; factor >= 1."""
    middle = (SIDE - 1) / 2
    place = (numpy.arange(SIDE) - middle) / factor + middle
    weights = numpy.maximum(
        0, 1 - numpy.abs(place[:, None] - numpy.arange(SIDE))
    )  # [of the result, of the image]
    return numpy.einsum("ri,nijc,sj->nrsc", weights, images, weights, optimize=True)


def motion_blurred(images, radius, sigma, degrees):
    """The mean along a line from each pixel, weighted by one half of a normal distribution.
    degrees: [n], the line's direction.
    """
    weights = numpy.exp(-(numpy.arange(2 * radius + 1) ** 2) / (2 * sigma**2))
    weights /= weights.sum()
    image, row, column = numpy.ogrid[: len(images), :SIDE, :SIDE]
    down, right = (turn(numpy.radians(degrees))[:, None, None] for turn in (numpy.sin, numpy.cos))
    inside = lambda place: numpy.clip(numpy.rint(place).astype(int), 0, SIDE - 1)
    return sum(
        weight * images[image, inside(row + i * down), inside(column + i * right)]
        for i, weight in enumerate(weights)
    )


def plasma(random, n, decay):
    """Clouds in [0, 1], [n, 32, 32]: the diamond-square fractal, on a torus. The variation shrinks
    by decay² from scale to scale.
    """
    heights, variation, step = numpy.zeros((n, SIDE, SIDE)), 1.0, SIDE
    varied = lambda mean: mean + variation * random.uniform(-1, 1, mean.shape)
    while step >= 2:
        half = step // 2
        corners = heights[:, ::step, ::step]
        below = lambda one: numpy.roll(one, -1, 1)
        beside = lambda one: numpy.roll(one, -1, 2)
        centres = varied((corners + below(corners) + beside(corners) + below(beside(corners))) / 4)
        heights[:, half::step, half::step] = centres
        heights[:, ::step, half::step] = varied(
            (corners + beside(corners) + centres + numpy.roll(centres, 1, 1)) / 4
        )
        heights[:, half::step, ::step] = varied(
            (corners + below(corners) + centres + numpy.roll(centres, 1, 2)) / 4
        )
        variation, step = variation / decay**2, half
    heights -= heights.min((1, 2), keepdims=True)
    return heights / heights.max((1, 2), keepdims=True)


def by_image(change):
    """Turns a function of one PIL image into a function of all of them."""
    return lambda images: (
        numpy.stack([numpy.asarray(change(Image.fromarray(image))) for image in to_bytes(images)])
        / 255
    )


def to_bytes(images):
    return numpy.rint(255 * numpy.clip(images, 0, 1)).astype(numpy.uint8)


# --- The corruptions, each a function of images, a random generator and the parameters of its
# severity.


def gaussian_noise(images, random, deviation):
    return images + random.normal(0, deviation, images.shape)


def shot_noise(images, random, photons):
    return random.poisson(images * photons) / photons


def impulse_noise(images, random, share):
    """Each value of each colour may become 0 or 1."""
    drawn = random.uniform(size=images.shape)
    return numpy.where(drawn < share / 2, 0, numpy.where(drawn < share, 1, images))


def defocus_blur(images, random, radius, soften):
    reach = numpy.arange(-3, 4)
    disk = (reach[:, None] ** 2 + reach**2 <= radius**2).astype(float)
    kernel = ndimage.gaussian_filter(disk / disk.sum(), soften, radius=1)
    return ndimage.convolve(images, kernel[None, :, :, None], mode="mirror")


def glass_blur(images, random, sigma, reach, rounds):
    """Pixels change places with their neighbours, one after the other, between two blurs."""
    blurred = gaussian_blur(images, sigma)
    image = numpy.arange(len(images))
    for _ in range(rounds):
        for row in range(SIDE - reach - 1, reach - 1, -1):
            for column in range(SIDE - reach - 1, reach - 1, -1):
                down, right = random.integers(-reach, reach, (2, len(images)))
                here, there = (image, row, column), (image, row + down, column + right)
                blurred[here], blurred[there] = blurred[there], blurred[here]
    return gaussian_blur(blurred, sigma)


def motion_blur(images, random, radius, sigma):
    return motion_blurred(images, radius, sigma, random.uniform(-45, 45, len(images)))


def zoom_blur(images, random, steps):
    """The mean of the image and `steps` enlargements, each by another hundredth."""
    return (images + sum(zoomed(images, 1 + step / 100) for step in range(steps))) / (steps + 1)


def snow(images, random, mean, deviation, zoom, threshold, radius, sigma, kept):
    flakes = zoomed(random.normal(mean, deviation, (len(images), SIDE, SIDE, 1)), zoom)
    flakes = numpy.clip(numpy.where(flakes < threshold, 0, flakes), 0, 1)
    flakes = motion_blurred(flakes, radius, sigma, random.uniform(-135, -45, len(images)))
    grey = images @ [0.299, 0.587, 0.114]
    pale = kept * images + (1 - kept) * numpy.maximum(images, grey[..., None] * 1.5 + 0.5)
    return pale + flakes + flakes[:, ::-1, ::-1]


def frost(images, random, kept, ice):
    """Needles: the ridges of two fields of clouds, bluish white."""
    ridges = numpy.maximum(
        *(1 - numpy.abs(2 * plasma(random, len(images), 1.5) - 1) for _ in range(2))
    )
    return kept * images + ice * ridges[..., None] ** 2 * [0.85, 0.95, 1.0]


def fog(images, random, density, decay):
    brightest = images.max((1, 2, 3), keepdims=True)
    return (
        (images + density * plasma(random, len(images), decay)[..., None])
        * brightest
        / (brightest + density)
    )


def brightness(images, random, more):
    """The V of HSV: the largest of the three colours."""
    value = images.max(-1, keepdims=True)
    brighter = numpy.minimum(value + more, 1)
    return numpy.where(value > 0, images * brighter / numpy.where(value > 0, value, 1), brighter)


def contrast(images, random, kept):
    mean = images.mean((1, 2), keepdims=True)
    return kept * (images - mean) + mean


def elastic_transform(images, random, alpha, sigma, shift):
    """Three corners of a square in the middle are moved, then every pixel a little, much like its
    neighbours.
    """
    n, third = len(images), SIDE // 3
    corners = SIDE / 2 + numpy.array([[third, third], [third, -third], [-third, -third]], float)
    moved = corners + random.uniform(-shift, shift, (n, 3, 2))
    # Where the pixels of the result come from: the affine map from `moved` to `corners`.
    equations = numpy.concatenate([moved, numpy.ones((n, 3, 1))], -1)
    origin = numpy.linalg.solve(equations, numpy.broadcast_to(corners, (n, 3, 2)))  # [n, 3, 2]
    row, column = numpy.meshgrid(numpy.arange(SIDE), numpy.arange(SIDE), indexing="ij")
    places = (
        numpy.stack([row, column, numpy.ones_like(row)], -1) @ origin[:, None]
    )  # [n, 32, 32, 2]
    images = sampled(images, places[..., 0], places[..., 1])
    if alpha == 0:
        return images
    wobble = random.uniform(-1, 1, (2, n, SIDE, SIDE))
    wobble = alpha * ndimage.gaussian_filter(wobble, sigma, axes=(2, 3), mode="reflect", truncate=3)
    return sampled(images, row + wobble[0], column + wobble[1])


def pixelate(images, random, share):
    small, box = (int(SIDE * share),) * 2, Image.Resampling.BOX
    return by_image(lambda image: image.resize(small, box).resize((SIDE, SIDE), box))(images)


def jpeg_compression(images, random, quality):
    def through(image):
        file = io.BytesIO()
        image.save(file, "JPEG", quality=quality)
        return Image.open(file)

    return by_image(through)(images)


# The parameters of severities 1 to 5.
CORRUPTIONS = {
    gaussian_noise: [(0.04,), (0.06,), (0.08,), (0.09,), (0.10,)],
    shot_noise: [(500,), (250,), (100,), (75,), (50,)],
    impulse_noise: [(0.01,), (0.02,), (0.03,), (0.05,), (0.07,)],
    defocus_blur: [(0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)],
    glass_blur: [(0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)],
    motion_blur: [(6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)],
    zoom_blur: [(6,), (11,), (16,), (21,), (26,)],
    snow: [
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    ],
    frost: [(1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)],
    fog: [(0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)],
    brightness: [(0.05,), (0.1,), (0.15,), (0.2,), (0.3,)],
    contrast: [(0.75,), (0.5,), (0.4,), (0.3,), (0.15,)],
    elastic_transform: [
        (0, 0, 2.56),
        (1.6, 6.4, 2.24),
        (2.56, 1.92, 1.92),
        (3.2, 1.28, 1.6),
        (3.2, 0.96, 0.96),
    ],
    pixelate: [(0.95,), (0.9,), (0.85,), (0.75,), (0.65,)],
    jpeg_compression: [(80,), (65,), (58,), (50,), (40,)],
}
NAMES = [corruption.__name__ for corruption in CORRUPTIONS]


def corrupted(images, name, severity, seed=0):
    """uint8 [n, 32, 32, 3] to the same, at severity 1 to 5. The noise is a function of seed,
    corruption and severity.
    """
    corruption = list(CORRUPTIONS)[NAMES.index(name)]
    random = numpy.random.default_rng([seed, NAMES.index(name), severity])
    parts = [images[begin : begin + CHUNK] / 255 for begin in range(0, len(images), CHUNK)]
    return numpy.concatenate(
        [
            to_bytes(corruption(part, random, *CORRUPTIONS[corruption][severity - 1]))
            for part in parts
        ]
    )


# --- The images and the folder.


class DataError(UserError):
    """What is wrong with the input."""


SETS = {
    "cifar10": ("cifar-10-batches-bin", "cifar-10-binary.tar.gz", "test_batch.bin", 1),
    "cifar100": ("cifar-100-binary", "cifar-100-binary.tar.gz", "test.bin", 2),
}


def test_images(dataset, data):
    """Images [n, 32, 32, 3] and labels [n] of CIFAR's binary version, in a folder or an archive."""
    folder, archive, file, label_bytes = SETS[dataset]
    data = pathlib.Path(data)
    found = [path for path in (data / file, data / folder / file) if path.is_file()]
    archives = [path for path in (data, data / archive) if path.is_file()]
    try:
        if found:
            content = found[0].read_bytes()
        elif archives:
            with tarfile.open(archives[0]) as opened:
                member = next(
                    (
                        one
                        for one in opened
                        if one.isfile() and pathlib.PurePath(one.name).name == file
                    ),
                    None,
                )
                content = opened.extractfile(member).read() if member else b""
        else:
            content = b""
    except (OSError, tarfile.TarError, EOFError) as error:
        raise DataError(
            f"`data` must hold {file}, in the folder {folder} or in {archive}. "
            f"Received: data={data} ({error})"
        ) from error
    size = label_bytes + 3 * SIDE * SIDE
    if not content or len(content) % size:
        raise DataError(
            f"`data` must hold {file}, whole records of {size} bytes, in the folder {folder} or "
            f"in {archive}. Received: data={data} ({len(content)} bytes of it)"
        )
    records = numpy.frombuffer(content, numpy.uint8).reshape(-1, size)
    return records[:, label_bytes:].reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1), records[
        :, label_bytes - 1
    ]


def write(folder, images, labels, seed):
    """The folder of the corrupted images, in the layout of CIFAR-10-C."""
    with files.making_folder(folder) as made:
        aside = pathlib.Path(made)
        for place, name in enumerate(NAMES):
            print(
                f"Generating corrupted images: {name} ({place + 1} of {len(NAMES)}) ...",
                file=sys.stderr,
                flush=True,
            )
            numpy.save(
                aside / f"{name}.npy",
                numpy.concatenate(
                    [corrupted(images, name, severity, seed) for severity in range(1, 6)]
                ),
            )
        numpy.save(aside / "labels.npy", numpy.tile(labels, 5))
        (aside / "source.txt").write_text(
            f"corruptions generated by late_phase, {len(images)} images, seed {seed}\n"
        )


def generated(run, data, cache, images, seed=0):
    """The folder, below `cache`, with the corrupted images of a run's data set, which is at `data`:
    its first `images` test images.
    """
    if images < 1 or seed < 0:
        raise DataError(
            f"`images` must be at least 1, `seed` at least 0. Received: images={images}, "
            f"seed={seed}"
        )
    config = tomllib.loads((pathlib.Path(run) / "config.toml").read_text())
    if config.get("dataset") not in SETS:
        raise DataError(
            f"RUN must be a run of cifar. Received: {run}, a run of {config.get('program')}"
        )
    clean, labels = test_images(config["dataset"], data)
    count = min(images, config["test_images"] or len(clean), len(clean))
    clean, labels = numpy.ascontiguousarray(clean[:count]), labels[:count]
    key = hashlib.sha256(
        clean.tobytes() + labels.tobytes() + pathlib.Path(__file__).read_bytes()
    ).hexdigest()[:12]
    folder = pathlib.Path(cache) / f"{config['dataset']}-c-{count}-seed-{seed}-{key}"
    if not folder.exists():
        write(folder, clean, labels, seed)
    return folder
