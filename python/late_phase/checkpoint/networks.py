"""The networks of the training programs as Keras models, and the names that their weights have in a checkpoint.

What models/conv_net.cc, models/wide_resnet.cc and models/char_lstm.cc build, layer by layer: the same shapes, paddings, order of gates and
initial values. A layer bn1 in group0/block0 of the program is here group0_block0_bn1, because Keras allows no slash in a layer's name.
"""

import keras

from late_phase.keras import BatchNormalization, Dense

# BatchNorm of the program: LatePhase>BatchNorm's defaults. Its momentum, 0.1, is the share of the new value, Keras's that of the old one.
_EPSILON, _MOMENTUM = 1e-5, 0.9
# Of one image, CIFAR's.
_IMAGE = (32, 32, 3)
_CLASSES = {"cifar10": 10, "cifar100": 100}
# A Keras weight -> what the program calls it; other weights have the same name.
_BATCH_NORM = {"gamma": "scale", "beta": "offset", "moving_mean": "mean", "moving_variance": "variance"}


def build(config, contents):
    """The network of a run, with fresh weights.

    Args:
      config: the run's config.toml.
      contents: of its checkpoint.

    Returns:
      A Functional model, not compiled, that gives logits.
    """
    if config["program"] != "cifar":
        raise ValueError(f"`run` must be of `tools/latephase train cifar`. Received: program={config['program']!r}")
    return _ImageNetwork(config, int(contents.settings["members"])).build()


def weights(model):
    """The weights of a network: name in a checkpoint -> Keras variable."""
    found = {}
    for layer in model.layers:
        for variable in layer.weights:
            found[f"{layer.name.replace('_', '/')}/{_BATCH_NORM.get(variable.name, variable.name)}"] = variable
    return found


class _ImageNetwork:
    """Layers as a run's configuration asks for them."""

    def __init__(self, config, members):
        self._config = config
        self._members = members

    def build(self):
        images = keras.Input(_IMAGE, dtype=self._config["dtype"], name="images")
        network = self._config["network"]
        bodies = {"convnet": self._conv_net, "wrn": self._wide_resnet}
        if network not in bodies:
            raise ValueError(f"`network` must be wrn or convnet. Received: network={network!r}")
        return keras.Model(images, self._head(bodies[network](images)), name=network)

    def _conv_net(self, x):
        for layer, maps in enumerate((6, 16)):
            x = self._convolution(f"conv{layer}", maps, 5, use_bias=True, activation="relu")(x)
            x = self._batch_norm(f"bn{layer}")(x)
            x = keras.layers.MaxPooling2D(2, **self._named(f"pool{layer}"))(x)
        x = keras.layers.Flatten(**self._named("flatten"))(x)
        for layer, units in ((2, 120), (3, 84)):
            x = keras.layers.Dense(units, activation="relu", kernel_initializer=_initializer(), **self._named(f"dense{layer}"))(x)
            x = self._batch_norm(f"bn{layer}")(x)
        return x

    def _wide_resnet(self, x):
        channels = 16
        x = self._convolution("conv0", channels, 3, padding="same")(x)
        for group in range(3):
            width = 16 * 2**group * self._config["width"]
            for block in range((self._config["depth"] - 4) // 6):
                x = self._block(f"group{group}_block{block}", x, width, stride=2 if group > 0 and block == 0 else 1, project=channels != width)
                channels = width
        return keras.layers.GlobalAveragePooling2D(**self._named("pool"))(self._batch_norm_relu("bn", "relu", x))

    def _block(self, name, x, width, stride, project):
        """A pre-activation residual block; where the channels change, the shortcut is a projection of the activated input."""
        activated = y = self._batch_norm_relu(f"{name}_bn0", f"{name}_relu0", x)
        if stride == 1:
            y = self._convolution(f"{name}_conv0", width, 3, padding="same")(y)
        else:
            # "same" would pad two sides only; the published networks pad all four.
            y = keras.layers.ZeroPadding2D(1, **self._named(f"{name}_pad"))(y)
            y = self._convolution(f"{name}_conv0", width, 3, strides=stride)(y)
        y = self._batch_norm_relu(f"{name}_bn1", f"{name}_relu1", y)
        y = self._convolution(f"{name}_conv1", width, 3, padding="same")(y)
        shortcut = self._convolution(f"{name}_shortcut", width, 1, strides=stride)(activated) if project else x
        return keras.layers.Add(**self._named(f"{name}_add"))([y, shortcut])

    def _head(self, features):
        options = {"units": _CLASSES[self._config["dataset"]], "kernel_initializer": _initializer(), **self._named("head")}
        if self._has_members("late_head"):
            return Dense(members=self._members, **options)(features)
        return keras.layers.Dense(**options)(features)

    def _convolution(self, name, maps, size, use_bias=False, **options):
        return keras.layers.Conv2D(maps, size, use_bias=use_bias, kernel_initializer=_initializer(), **options, **self._named(name))

    def _batch_norm_relu(self, name, relu, x):
        return keras.layers.ReLU(**self._named(relu))(self._batch_norm(name)(x))

    def _batch_norm(self, name):
        options = {"epsilon": _EPSILON, "momentum": _MOMENTUM, **self._named(name)}
        if self._has_members("late_batch_norm"):
            return BatchNormalization(members=self._members, **options)
        return keras.layers.BatchNormalization(**options)

    def _has_members(self, part):
        return self._members > 1 and self._config[part]

    def _named(self, name):
        return {"name": name, "dtype": self._config["dtype"]}


def _initializer():
    """N(0, 2 / fan-in)."""
    return keras.initializers.VarianceScaling(2.0, mode="fan_in", distribution="untruncated_normal")
