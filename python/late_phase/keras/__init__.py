"""Late-phase weights for Keras: layers with members, and the optimizer that trains them.

Training uses one member per minibatch, which the optimizer chooses; inference uses the mean of the
members.

Example:

>>> import keras, numpy as np, late_phase.keras
>>> x, y = np.random.normal(size=(60, 8)), np.arange(60) % 4
>>> layers = [keras.layers.Dense(16), keras.layers.BatchNormalization(), keras.layers.Dense(4)]
>>> model = keras.Sequential([keras.Input((8,)), *layers])
>>> model = late_phase.keras.convert(model, members=10)
>>> optimizer = late_phase.keras.LatePhaseOptimizer(
...     keras.optimizers.SGD(0.1), members=10, start=30, sigma=0.1)
>>> model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
>>> _ = model.fit(x, y, batch_size=10, epochs=10, verbose=0)  # 60 steps: the members start half-way
>>> late_phase.keras.collapse(model).save("plain.keras")  # loads without late_phase
"""

from late_phase.keras.advice import advise
from late_phase.keras.any_layer import Members
from late_phase.keras.conversion import collapse, convert
from late_phase.keras.ensemble import ensemble
from late_phase.keras.layers import BatchNormalization, Dense
from late_phase.keras.member_metrics import MemberMetrics
from late_phase.keras.members import MemberLayer
from late_phase.keras.optimizer import LatePhaseOptimizer
from late_phase.keras.rank1 import Rank1Conv2D, Rank1Dense
from late_phase.keras.rank1_lstm import Rank1LSTM, Rank1LSTMCell
from late_phase.keras.reestimation import reestimate_batch_norm
from late_phase.keras.start import Epoch, StartOnPlateau
from late_phase.keras.summary import summary
from late_phase.keras.swa import SWA

__all__ = [
    "BatchNormalization",
    "Dense",
    "Epoch",
    "LatePhaseOptimizer",
    "MemberLayer",
    "MemberMetrics",
    "Members",
    "Rank1Conv2D",
    "Rank1Dense",
    "Rank1LSTM",
    "Rank1LSTMCell",
    "SWA",
    "StartOnPlateau",
    "advise",
    "collapse",
    "convert",
    "ensemble",
    "reestimate_batch_norm",
    "summary",
]
