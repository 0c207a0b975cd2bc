"""The network of `tools/latephase train enwik8` (models/text/char_lstm.cc) as a Keras model."""

import keras

from late_phase.keras import Rank1LSTM

# Layer and weight -> name in a checkpoint.
_NAMES = {
    ("embedding", "embeddings"): "embedding",
    ("lstm", "kernel"): "kernel",
    ("lstm", "recurrent_kernel"): "recurrent_kernel",
    ("lstm", "bias"): "bias",
    ("lstm", "u"): "u",
    ("lstm", "v"): "v",
    ("softmax", "kernel"): "softmax_kernel",
    ("softmax", "bias"): "softmax_bias",
}


def build(config, contents):
    """Tokens [N, T] -> logits [N, T, vocabulary] of the next one, with fresh weights.

    Args:
      config: the run's config.toml.
      contents: of its checkpoint, which has the text's vocabulary.
    """
    if "vocabulary" not in contents.variables:
        raise ValueError(
            "The checkpoint must hold the vocabulary, as those of enwik8 do. Received: vocabulary "
            "missing"
        )
    vocabulary = len(contents.variables["vocabulary"])
    near_zero, near_one = (
        keras.initializers.RandomUniform(-0.01, 0.01),
        keras.initializers.RandomUniform(0.99, 1.01),
    )

    def named(name):
        return {"name": name, "dtype": config["dtype"]}

    lstm = {
        "units": config["units"],
        "return_sequences": True,
        "kernel_initializer": near_zero,
        "recurrent_initializer": near_zero,
        "bias_initializer": near_zero,
        "unit_forget_bias": False,
        **named("lstm"),
    }
    tokens = keras.Input((None,), dtype="int32", name="tokens")
    x = keras.layers.Embedding(
        vocabulary, config["embedding"], embeddings_initializer=near_zero, **named("embedding")
    )(tokens)
    # The controls of a network are named after it.
    if config["model"] == "late-phase" or config["model"].startswith("rank1"):
        x = Rank1LSTM(
            members=contents.members, u_initializer=near_one, v_initializer=near_one, **lstm
        )(x)
    else:
        x = keras.layers.LSTM(**lstm)(x)
    logits = keras.layers.Dense(
        vocabulary, kernel_initializer=near_zero, bias_initializer=near_zero, **named("softmax")
    )(x)
    return keras.Model(tokens, logits, name="char_lstm")


def name_in_checkpoint(layer, weight):
    return _NAMES.get((layer, weight), f"{layer}/{weight}")
