"""Late-phase weights for Keras: layers whose weights have members, and the optimizer that trains them.

    model = late_phase.keras.convert(model, members=10)
    model.compile(late_phase.keras.LatePhaseOptimizer(keras.optimizers.SGD(0.1), members=10, start=5000, sigma=0.1), loss)
    model.fit(...)
    late_phase.keras.collapse(model).save("plain.keras")

Training uses one member per minibatch, which the optimizer chooses; inference uses the mean of the members.
"""

from late_phase.keras.conversion import collapse, convert
from late_phase.keras.ensemble import ensemble
from late_phase.keras.layers import BatchNormalization, Dense
from late_phase.keras.optimizer import LatePhaseOptimizer
from late_phase.keras.rank1 import Rank1Conv2D, Rank1Dense
from late_phase.keras.rank1_lstm import Rank1LSTM
from late_phase.keras.reestimation import reestimate_batch_norm
from late_phase.keras.swa import SWA

__all__ = [
    "BatchNormalization",
    "Dense",
    "LatePhaseOptimizer",
    "Rank1Conv2D",
    "Rank1Dense",
    "Rank1LSTM",
    "SWA",
    "collapse",
    "convert",
    "ensemble",
    "reestimate_batch_norm",
]
