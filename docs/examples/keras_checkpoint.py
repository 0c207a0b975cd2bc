"""A trained run in Keras: a plain model for everyone, and back into the run.

Arguments: RUN, PLAIN.keras
"""

import sys

import late_phase.checkpoint
import late_phase.keras

run, plain = sys.argv[1:]  # a folder of `tools/latephase train`; a file to be written
model = late_phase.checkpoint.keras_model(run)
model.summary()
late_phase.keras.collapse(model).save(plain)  # keras.models.load_model needs no late_phase for it

for weight in model.layers[-1].weights:
    weight.assign(0.9 * weight)  # less confident predictions; or train it
late_phase.checkpoint.save(model, run)  # for `tools/latephase eval RUN`, and `train … --resume`
