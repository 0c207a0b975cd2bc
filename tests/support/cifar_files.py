"""Small generated CIFAR files for tests, which a network can learn."""

import os

import numpy


def _records(set, count, classes, random):
    """Each class has a colour and horizontal stripes, under noise; see cifar_files.h."""
    labels = random.permutation(numpy.arange(count) % classes)
    shuffled = labels * 37 % 125  # its base-5 digits are the levels of the three colours
    levels = numpy.stack([shuffled % 5, shuffled // 5 % 5, shuffled // 25], axis=1)  # [count, 3]
    period = 1 + labels[:, None] % 6
    stripes = numpy.where(numpy.arange(32) // period % 2 == 0, 20, -20)  # [count, 32]
    noise = random.randint(-32, 33, size=(count, 3, 32, 32))
    images = 56 + 36 * levels[:, :, None, None] + stripes[:, None, :, None] + noise
    columns = [labels // 5, labels] if set == "cifar100" else [labels]
    return numpy.concatenate(
        [numpy.stack(columns, axis=1), images.reshape(count, -1)], axis=1
    ).astype(numpy.uint8)


def write_cifar(folder, set="cifar10", train_per_file=20, test=40, classes=10, seed=0):
    """The files of the binary version of a set ("cifar10" or "cifar100") in the folder, which is
    created if necessary.

    The first `classes` classes occur, about equally often. Returns the folder.
    """
    names = {
        "cifar10": [f"data_batch_{number}.bin" for number in range(1, 6)] + ["test_batch.bin"],
        "cifar100": ["train.bin", "test.bin"],
    }[set]
    random = numpy.random.RandomState(seed)
    os.makedirs(folder, exist_ok=True)
    for name in names:
        count = test if name.startswith("test") else train_per_file
        _records(set, count, classes, random).tofile(os.path.join(folder, name))
    return str(folder)
