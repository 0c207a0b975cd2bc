"""Threads that update and read one variable at the same time.

Updates of whole numbers are exact in any order, so the end is known; and whoever reads a row, or
the mean of all, must see it before or after an update and never in between.
"""

import threading

import numpy as np

import late_phase
from tests.campaign.op_trial import RAW

_THREADS, _UPDATES = 3, 20


class Race:
    def __init__(self, seed, number):
        random = np.random.default_rng([seed, number, 1])
        self.number = number
        self.K, self.D = int(random.integers(1, 4)), int(random.choice([1, 7, 1000, 40000]))
        self.rule = str(random.choice(["sgd", "momentum", "accumulate"]))
        # Of each thread: which member, and the number that is subtracted from all of its row.
        self.members = random.integers(self.K, size=(_THREADS, _UPDATES), dtype=np.int32)
        self.amounts = random.integers(1, 50, size=(_THREADS, _UPDATES)).astype(float)
        self.complaints = []

    def __str__(self):
        return f"call {self.number}: {_THREADS} threads, {self.rule}, [{self.K},{self.D}]"

    def run(self):
        """What is wrong: "" if nothing."""
        self.handles = {name: self._variable(name) for name in ("var", "accum", "sum")}
        threads = [
            threading.Thread(target=self._update, args=(thread,)) for thread in range(_THREADS)
        ]
        self.done = False
        reader = threading.Thread(target=self._read)
        for thread in (reader, *threads):
            thread.start()
        for thread in threads:
            thread.join()
        self.done = True
        reader.join()
        self._check_end()
        for handle in self.handles.values():
            RAW.DestroyResourceOp(resource=handle)
        return "; ".join(self.complaints[:3])

    def _variable(self, name):
        handle = RAW.VarHandleOp(
            dtype=np.float64, shape=[self.K, self.D], shared_name=f"race-{self.number}-{name}"
        )
        RAW.AssignVariableOp(resource=handle, value=np.zeros([self.K, self.D]))
        return handle

    def _update(self, thread):
        ops, number = late_phase.raw_ops, np.float64
        common = {"lr": number(1), "weight_decay": number(0)}
        handles = self.handles
        for member, amount in zip(self.members[thread], self.amounts[thread]):
            row = np.full(self.D, amount)
            if self.rule == "sgd":
                ops.late_phase_member_apply_sgd(
                    var=handles["var"], member=member, grad=row, **common
                )
            elif self.rule == "momentum":
                ops.late_phase_member_apply_momentum(
                    var=handles["var"], accum=handles["accum"], member=member, grad=row,
                    momentum=number(0), **common,
                )  # fmt: skip
            else:  # in a cycle that never ends
                grad = np.zeros([self.K, self.D])
                grad[member] = row
                ops.late_phase_base_apply_sgd(
                    var=handles["var"], sum=handles["sum"], member=np.int32(0), cycle=np.int32(2),
                    scale=number(1), grad=grad, **common,
                )  # fmt: skip

    def _read(self):
        ops, var = late_phase.raw_ops, self.handles["var"]
        while not self.done:
            for k in range(self.K):
                row = ops.late_phase_read_member(
                    var=var, member=np.int32(k), dtype=np.float64
                ).numpy()
                if (row != row[0]).any():
                    self.complaints.append(f"row {k} was read in the middle of an update")
            mean = ops.late_phase_collapse(var=var, dtype=np.float64).numpy()
            if (mean != mean[0]).any():
                self.complaints.append("the mean was read in the middle of an update")

    def _check_end(self):
        wanted = np.zeros(self.K)
        np.add.at(wanted, self.members.reshape(-1), self.amounts.reshape(-1))
        name, sign = ("sum", 1) if self.rule == "accumulate" else ("var", -1)
        end = RAW.ReadVariableOp(resource=self.handles[name], dtype=np.float64).numpy()
        if (end != sign * wanted[:, None]).any():
            self.complaints.append(f"`{name}` has lost an update: {end[:, 0]}, {sign * wanted}")
