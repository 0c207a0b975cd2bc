"""The networks of `tools/latephase train cifar` as Keras models.

The same as conv_net.cc and wide_resnet.cc in models/images/networks/.
"""

import keras

from late_phase.keras import BatchNormalization, Dense, Rank1Conv2D, Rank1Dense

# The defaults of LatePhase>BatchNorm; its 0.1, the weight of the new value, is Keras's 0.9, that of
# the old one.
_EPSILON, _MOMENTUM = 1e-5, 0.9
_IMAGE = (32, 32, 3)
_CLASSES = {"cifar10": 10, "cifar100": 100}
# Keras's name of a weight -> the program's, where they differ.
_WEIGHTS = {
    "gamma": "scale",
    "beta": "offset",
    "moving_mean": "mean",
    "moving_variance": "variance",
}


def build(config, contents):
    """Images [N, 32, 32, 3] -> logits [N, classes], with fresh weights.

    Args:
      config: the run's config.toml.
      contents: of its checkpoint.
    """
    return _Layers(config, contents.members).network()


def name_in_checkpoint(layer, weight):
    """Keras allows no slash in the name of a layer: group0_block1_bn0 is group0/block1/bn0."""
    return f"{layer.replace('_', '/')}/{_WEIGHTS.get(weight, weight)}"


class _Layers:
    """The layers that a configuration specifies."""

    def __init__(self, config, members):
        self._config = config
        self._members = members

    def network(self):
        images = keras.Input(_IMAGE, dtype=self._config["dtype"], name="images")
        network = self._config["network"]
        bodies = {"convnet": self._conv_net, "wrn": self._wide_resnet}
        _require_layers_of_keras(self._config, list(bodies))
        return keras.Model(images, self._head(bodies[network](images)), name=network)

    def _conv_net(self, x):
        for layer, maps in enumerate((6, 16)):
            x = self._convolution(f"conv{layer}", maps, 5, use_bias=True, activation="relu")(x)
            x = self._batch_norm(f"bn{layer}")(x)
            x = keras.layers.MaxPooling2D(2, **self._named(f"pool{layer}"))(x)
        x = keras.layers.Flatten(**self._named("flatten"))(x)
        for layer, units in ((2, 120), (3, 84)):
            options = {
                "activation": "relu",
                "kernel_initializer": _initializer(),
                **self._named(f"dense{layer}"),
            }
            x = (
                Rank1Dense(units, self._members, **options)
                if self._rank1()
                else keras.layers.Dense(units, **options)
            )(x)
            x = self._dropout(f"dropout{layer}", self._batch_norm(f"bn{layer}")(x))
        return x

    def _wide_resnet(self, x):
        channels = 16
        x = self._convolution("conv0", channels, 3, padding="same")(x)
        for group in range(3):
            width = 16 * 2**group * self._config["width"]
            for block in range((self._config["depth"] - 4) // 6):
                stride = 2 if group > 0 and block == 0 else 1
                x = self._block(
                    f"group{group}_block{block}", x, width, stride, project=channels != width
                )
                channels = width
        return keras.layers.GlobalAveragePooling2D(**self._named("pool"))(
            self._batch_norm_relu("bn", "relu", x)
        )

    def _block(self, name, x, width, stride, project):
        """A pre-activation residual block; if the channels change, the shortcut is a projection."""
        activated = y = self._batch_norm_relu(f"{name}_bn0", f"{name}_relu0", x)
        if stride == 1:
            y = self._convolution(f"{name}_conv0", width, 3, padding="same")(y)
        else:
            # "same" would pad two sides only; the published networks pad all four.
            y = keras.layers.ZeroPadding2D(1, **self._named(f"{name}_pad"))(y)
            y = self._convolution(f"{name}_conv0", width, 3, strides=stride)(y)
        y = self._batch_norm_relu(f"{name}_bn1", f"{name}_relu1", y)
        y = self._dropout(f"{name}_dropout", y)
        y = self._convolution(f"{name}_conv1", width, 3, padding="same")(y)
        shortcut = (
            self._convolution(f"{name}_shortcut", width, 1, strides=stride)(activated)
            if project
            else x
        )
        return keras.layers.Add(**self._named(f"{name}_add"))([y, shortcut])

    def _head(self, features):
        options = {
            "units": _CLASSES[self._config["dataset"]],
            "kernel_initializer": _initializer(),
            **self._named("head"),
        }
        if self._has_members("late_head"):
            return Dense(members=self._members, **options)(features)
        return keras.layers.Dense(**options)(features)

    def _convolution(self, name, maps, size, use_bias=False, **options):
        options = {
            "use_bias": use_bias,
            "kernel_initializer": _initializer(),
            **options,
            **self._named(name),
        }
        return (
            Rank1Conv2D(maps, size, self._members, **options)
            if self._rank1()
            else keras.layers.Conv2D(maps, size, **options)
        )

    def _rank1(self):
        return self._config.get("late_rank1", False)

    def _dropout(self, name, x):
        rate = self._config.get("dropout", 0)
        return keras.layers.Dropout(rate, **self._named(name))(x) if rate else x

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


def _require_layers_of_keras(config, networks):
    """Refuses networks that have no layers here."""
    if config["network"] not in networks:
        raise ValueError(
            f"`network` must be {' or '.join(networks)} to be built in Keras. "
            f"Received: network={config['network']!r}"
        )
    if config["model"] == "batch-ensemble":
        raise ValueError(
            "`model` must be base or late-phase to be built in Keras. "
            "Received: model='batch-ensemble'"
        )
    for setting in ("hypernetwork", "late_all"):
        if config.get(setting, False):
            raise ValueError(
                f"`{setting}` must be false in a run that is built in Keras. "
                f"Received: {setting}=True"
            )


def _initializer():
    """N(0, 2 / fan-in)."""
    return keras.initializers.VarianceScaling(2.0, mode="fan_in", distribution="untruncated_normal")
