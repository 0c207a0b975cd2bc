"""What the names of models mean: a network, and what is done to it from T0 on."""

# The network that `late-phase` is until its members are spawned, by program.
LATE_PHASE_NETWORK = {"cifar": "base", "enwik8": "rank1"}
# Controls. Their name follows that of their network, which is "base" if there is none.
TREATMENTS = ("accumulation", "lower-rate", "decay")


def parts_of(program, model):
    """(network, treatment): ("rank1", "accumulation"), ("base", "decay"), ("rank1", "late-phase"),
    ("base", "").
    """
    if model == "late-phase":
        return LATE_PHASE_NETWORK[program], model
    for treatment in TREATMENTS:
        if model == treatment or model.endswith(f"-{treatment}"):
            return model.removesuffix(treatment).rstrip("-") or "base", treatment
    return model, ""


def single(program, model):
    """The model that one member means: the network without a treatment."""
    network, treatment = parts_of(program, model)
    return network if treatment else LATE_PHASE_NETWORK[program]


def has_members(program, model):
    """Whether K makes a difference to it; to a falling rate it does not."""
    return parts_of(program, model)[1] in ("late-phase", "accumulation", "lower-rate")
