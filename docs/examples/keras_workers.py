"""Late-phase training by several workers: start one process per worker, each with its TF_CONFIG.

    python keras_workers.py FOLDER [EPOCHS]

Checkpoints go to FOLDER, which all workers see. Whatever stops a worker, start all of them again:
they resume from the last checkpoint.
"""

import json
import os
import sys

import keras
import numpy as np
import tensorflow as tf

import late_phase.keras

folder, epochs = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 4
worker = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before anything else of TensorFlow
members, batch = 3, 32  # `batch` is of all workers together

random = np.random.default_rng(0)
x = random.normal(size=(256, 8)).astype("float32")
y = np.argmax(x @ random.normal(size=(8, 4)), axis=1)
own = slice(worker, None, strategy.num_replicas_in_sync)  # of every minibatch, this worker's part

with strategy.scope():
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(16),
            late_phase.keras.BatchNormalization(members=members, synchronized=True),
            keras.layers.ReLU(),
            late_phase.keras.Dense(4, members=members),
        ]
    )
    optimizer = late_phase.keras.LatePhaseOptimizer(
        keras.optimizers.SGD(0.1, momentum=0.9), members=members, start=10, sigma=0.1
    )
    optimizer.build(model.trainable_variables)
    epoch = tf.Variable(0, trainable=False)
loss_of_each = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)


@tf.function
def train_step(x, y):
    def replica_step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(loss_of_each(y, model(x, training=True))) / batch
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    return strategy.reduce("SUM", strategy.run(replica_step, args=(x, y)), axis=None)


# Every worker takes part in a checkpoint; the files of the first are kept.
place = folder if worker == 0 else os.path.join(folder, f"worker-{worker}")
checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, epoch=epoch)
manager = tf.train.CheckpointManager(checkpoint, place, max_to_keep=1)
checkpoint.restore(tf.train.latest_checkpoint(folder))
swa = late_phase.keras.SWA(
    start=late_phase.keras.Epoch(2), dataset=x, backup_dir=os.path.join(place, "swa")
)
swa.set_model(model)
while epoch < epochs:
    swa.on_epoch_begin(epoch.numpy())
    for t in range(0, len(x), batch):
        loss = train_step(x[t : t + batch][own], y[t : t + batch][own])
    epoch.assign_add(1)
    manager.save()
    swa.on_epoch_end(epoch.numpy() - 1)
    if worker == 0:
        print(
            f"epoch {epoch.numpy()}: loss {loss.numpy():.4f}, member {optimizer.member.numpy()}",
            flush=True,
        )
if worker == 0:
    late_phase.keras.collapse(model).save(os.path.join(folder, "plain.keras"))
    with swa.averaged():
        late_phase.keras.collapse(model).save(os.path.join(folder, "averaged.keras"))
