"""What docs/keras.md says late_phase works with: here, or in the tests that CHECKED_BY names."""

import os
import re
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import late_phase.keras

K = 3
# Row of the table -> the tests of what it says; a name without a file is of this one. What
# late_phase has no say in has none.
CHECKED_BY = {
    "eager execution, `tf.function`, `steps_per_execution`": [
        "test_eager_training_is_that_of_a_graph",
        "optimizer_test.py::test_custom_loop_equals_the_plain_loop",
        "optimizer_test.py::test_several_steps_per_execution"],
    "XLA (`jit_compile=True`)": [
        "xla_training_test.py::test_training_equals_that_without_xla",
        "xla_training_test.py::test_auto_takes_the_fused_kernels_on_a_cpu",
        "test_xla_predicts_the_same", "optimizer_use_test.py::test_plain_layers_compile_under_xla"],
    "`mixed_bfloat16`, `mixed_float16` with `LossScaleOptimizer`, `float64`": [
        "layers_test.py::test_mixed_precision_trains", "test_float64_trains",
        "test_weights_of_batch_norm_are_never_of_16_bits"],
    "Sequential, Functional and nested models, `keras.applications`": [
        "layers_test.py::test_converted_application_predicts_the_same_at_once",
        "ensemble_test.py::test_is_the_mean_of_single_members"],
    "Functional models of your own class, with a `train_step`": [
        "convert_test.py::test_a_functional_model_with_its_own_step_keeps_it"],
    "models with a `call` of your own": [
        "own_models_test.py::test_training_is_that_of_a_functional_model",
        "own_models_test.py::test_members_that_a_class_makes_are_collapsed",
        "own_models_test.py::test_weights_are_saved_alone",
        "own_models_test.py::test_what_cannot_be_converted_is_said_at_once",
        "training_mode_test.py::test_a_gradient_of_the_mean_is_refused"],
    "`Bidirectional`, `TimeDistributed`, `RNN` with cells, other wrappers": [
        "wrappers_test.py::test_training_collapsing_and_averaging",
        "wrappers_test.py::test_bidirectional_is_trained_like_two_layers",
        "wrappers_test.py::test_time_distributed_is_trained_like_the_layer"],
    "integer and sparse inputs, masks": [
        "options_test.py::test_integers_are_normalised_as_floats",
        "options_test.py::test_sparse_inputs_are_their_dense_ones",
        "masks_test.py::test_masked_training_has_the_gradients_of_keras",
        "masks_test.py::test_masked_batch_norm_is_keras"],
    "`kernel_`, `bias_`, `beta_` and `gamma_constraint` and `_regularizer`, `axis` of BatchNorm": [
        "dense_test.py::test_constraints_hold_as_in_keras",
        "dense_test.py::test_regularizers_count_as_in_keras",
        "options_test.py::test_batch_norm_before_the_members_is_keras_s",
        "options_test.py::test_constraints_of_batch_norm_hold_for_every_member",
        "options_test.py::test_another_axis_is_that_of_transposed_inputs"],
    "`dropout` and `recurrent_dropout` of LSTM": [
        "rank1_test.py::test_dropout_of_inputs_is_keras_own",
        "masks_test.py::test_recurrent_dropout_is_keras_with_the_same_seed"],
    "an activation set to None, `layer.activation = None`": [
        "options_test.py::test_an_activation_that_was_taken_away"],
    "`renorm` of BatchNorm, LoRA of `Dense(members=K)` itself, `groups` of `Rank1Conv2D`": [
        "options_test.py::test_what_is_refused_is_named"],
    "`quantize`": [
        "options_test.py::test_a_collapsed_model_is_quantized",
        "options_test.py::test_members_are_not_quantized_and_that_is_said"],
    "any Keras layer, LoRA": [
        "members_test.py::test_training_is_the_plain_loop",
        "convert_weights_test.py::test_weights_are_chosen_by_name",
        "members_test.py::test_lora_inside_a_block_is_saved_and_collapsed_to_one_adapter"],
    "Keras Hub's layers and backbones (0.32)": [
        "keras_hub_test.py::test_transformer_encoder",
        "keras_hub_test.py::test_norms_and_biases_of_a_backbone",
        "keras_hub_test.py::test_lora_on_a_frozen_backbone_collapses_to_one_adapter"],
    "`OneDeviceStrategy`, `MirroredStrategy`": [
        "test_one_device_strategy",
        "distribute_test.py::test_fit_on_two_devices_is_that_of_one_with_the_joint_minibatch",
        "distribute_test.py::test_a_loop_on_two_devices_is_fit"],
    "`MultiWorkerMirroredStrategy`": [
        "distribute_test.py"
        "::test_two_workers_are_one_with_the_joint_minibatch_and_survive_a_kill"],
    "TPUs": [],
    "`.keras`": [
        "optimizer_test.py::test_a_saved_model_goes_on_as_if_it_had_never_stopped",
        "layers_test.py::test_collapsed_model_loads_without_late_phase"],
    "`save_weights`, `tf.train.Checkpoint`": [
        "layers_test.py::test_weights_are_saved_and_loaded", "test_checkpoint_holds_all_state"],
    "`.h5` of a whole model": ["test_h5_loads_without_its_optimizer"],
    "SavedModel (`model.export`)": [
        "test_saved_model_needs_the_ops",
        "layers_test.py::test_collapsed_model_loads_without_late_phase"],
    "TensorFlow Lite": ["test_tensorflow_lite_takes_the_collapsed_model_only"],
    "TensorFlow.js, ONNX": [],
    "`use_ema`, `gradient_accumulation_steps`": [
        "optimizer_test.py::test_averages_and_sums_of_another_kind_are_refused"],
    "`Embedding`, whose gradients are sparse; tied, too": [
        "sparse_test.py::test_training_is_the_plain_loop",
        "sparse_test.py::test_no_dense_array_is_made_before_the_end_of_a_cycle"],
}  # fmt: skip

X, Y = np.random.default_rng(0).normal(size=(24, 8)).astype("float32"), np.arange(24) % 4
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def network(seed=0):
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(6),
            late_phase.keras.BatchNormalization(members=K),
            late_phase.keras.Dense(4, members=K),
        ]
    )


def optimizer():
    return late_phase.keras.LatePhaseOptimizer(
        keras.optimizers.SGD(0.1, momentum=0.9), members=K, start=2, sigma=0.1
    )


def trained(model=None, **options):
    """After six steps, of which four are of the late phase."""
    model = model or network()
    model.compile(optimizer(), LOSS, **options)
    model.fit(X, Y, batch_size=4, shuffle=False, verbose=0)
    return model


def outputs(model):
    return model.predict(X, verbose=0)


def test_the_table_is_that_of_the_page():
    with open("docs/keras.md") as page:
        section = page.read().partition("## What it works with")[2]
    rows = [
        line.strip("| ").split(" | ")[0] for line in section.splitlines() if line.startswith("| ")
    ][1:]
    assert rows == list(CHECKED_BY)
    for name in sum(CHECKED_BY.values(), []):
        file, _, function = name.rpartition("::")
        with open(f"tests/python/keras/{file}" if file else __file__) as source:
            assert re.search(rf"^def {function}\(", source.read(), re.M), name


def test_eager_training_is_that_of_a_graph():
    np.testing.assert_array_equal(outputs(trained(run_eagerly=True)), outputs(trained()))


def test_xla_predicts_the_same():
    model = trained()
    for each in (model, late_phase.keras.collapse(model)):
        compiled = tf.function(each, jit_compile=True)
        np.testing.assert_allclose(compiled(X), outputs(model), rtol=0, atol=1e-5)


@pytest.fixture
def policy():
    before = keras.config.dtype_policy()
    yield keras.config.set_dtype_policy
    keras.config.set_dtype_policy(before)


def test_float64_trains(policy):
    policy("float64")
    model = trained()
    assert {weight.dtype for weight in model.weights} == {"float64"}
    # The fused op takes epsilon as a float, which is 5e-8 of it off.
    np.testing.assert_allclose(
        model(X.astype("float64")),
        late_phase.keras.collapse(model)(X.astype("float64")),
        rtol=0,
        atol=1e-9,
    )


@pytest.mark.parametrize("name", ["mixed_bfloat16", "mixed_float16", "bfloat16", "float16"])
def test_weights_of_batch_norm_are_never_of_16_bits(policy, name):
    policy(name)
    assert {weight.dtype for weight in network().layers[1].weights} == {"float32"}


def test_one_device_strategy():
    with tf.distribute.OneDeviceStrategy("/cpu:0").scope():
        model = network()
        model.compile(optimizer(), LOSS)
    model.fit(X, Y, batch_size=4, shuffle=False, verbose=0)
    np.testing.assert_array_equal(outputs(model), outputs(trained()))


def test_checkpoint_holds_all_state(tmp_path):
    model, other, fresh = trained(), network(seed=1), optimizer()
    fresh.build(other.trainable_variables)
    path = tf.train.Checkpoint(model=model, optimizer=model.optimizer).save(tmp_path / "checkpoint")
    tf.train.Checkpoint(model=other, optimizer=fresh).restore(path).assert_consumed()
    assert len(fresh.variables) == len(model.optimizer.variables) > 10
    for mine, theirs in zip(
        fresh.variables + other.variables, model.optimizer.variables + model.variables
    ):
        np.testing.assert_array_equal(mine, theirs)


def test_h5_loads_without_its_optimizer(tmp_path):
    model = trained()
    model.save(tmp_path / "model.h5")
    np.testing.assert_array_equal(
        outputs(keras.models.load_model(tmp_path / "model.h5", compile=False)), outputs(model)
    )


def test_saved_model_needs_the_ops(tmp_path):
    model = trained()
    model.export(tmp_path / "model", verbose=False)
    loaded = tf.saved_model.load(tmp_path / "model")
    np.testing.assert_allclose(loaded.serve(X), outputs(model), rtol=0, atol=1e-6)
    run = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import tensorflow as tf; tf.saved_model.load({str(tmp_path / 'model')!r})",
        ],
        capture_output=True,
        text=True,
        env={key: value for key, value in os.environ.items() if key != "LATE_PHASE_OPS"},
    )
    assert run.returncode != 0 and "Op type not registered 'LatePhase>BatchNorm'" in run.stderr


@pytest.mark.filterwarnings("ignore:.*tf.lite.Interpreter is deprecated")
def test_tensorflow_lite_takes_the_collapsed_model_only():
    model = trained()
    lite = tf.lite.Interpreter(
        model_content=tf.lite.TFLiteConverter.from_keras_model(
            late_phase.keras.collapse(model)
        ).convert()
    )
    lite.resize_tensor_input(lite.get_input_details()[0]["index"], X.shape)
    lite.allocate_tensors()
    lite.set_tensor(lite.get_input_details()[0]["index"], X)
    lite.invoke()
    np.testing.assert_allclose(
        lite.get_tensor(lite.get_output_details()[0]["index"]), outputs(model), rtol=0, atol=1e-5
    )
    with pytest.raises(Exception, match="LatePhase>BatchNorm"):
        tf.lite.TFLiteConverter.from_keras_model(model).convert()
