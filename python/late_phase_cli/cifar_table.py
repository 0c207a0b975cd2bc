"""The table of a CIFAR run, or of a folder of runs, beside the paper's figures."""

from late_phase_cli import metric_names, model_differences, run_table, text_table

# Test accuracy in % by network, dataset, training images and control (control_of); for SGD, or for
# SWA where stated.
PAPER = {
    ("convnet", "cifar10", 0, ""): {"base": "77.41 ±0.23", "late-phase": "77.94 ±0.37"},
    ("wrn-28-10", "cifar10", 0, ""): {
        "base": "96.16 ±0.12",
        "late-phase": "96.46 ±0.15",
        "base, SWA": "96.48",
        "late-phase, SWA": "96.81",
        "batch-ensemble": "96.19",
    },
    ("wrn-28-10", "cifar100", 0, ""): {
        "base": "81.35 ±0.16",
        "late-phase": "82.87 ±0.22",
        "base, SWA": "82.46 ±0.09",
        "late-phase, SWA": "83.06 ±0.08",
        "accumulation": "80.76 ±0.26",
        "batch-ensemble": "81.25",
    },
    ("wrn-28-10", "cifar100", 0, "small γ"): {"accumulation": "80.34 ±0.28"},
    ("wrn-28-10", "cifar100", 0, "T0 0"): {
        "base": "81.35 ±0.16",
        "late-phase": "74.38 ±0.71 (its text: 80.26 ±0.42)",
    },
    ("wrn-28-10", "cifar10", 0, "T0 0"): {"base": "96.16 ±0.12", "late-phase": "95.68 ±0.23"},
    ("wrn-28-10", "cifar100", 0, "pretrained"): {
        "base": "81.47 ±0.14",
        "late-phase": "82.02 ±0.12",
    },
    ("wrn-28-10", "cifar100", 0, "pretrained, frozen base"): {"late-phase": "81.50 ±0.20"},
    ("wrn-28-14", "cifar10", 0, ""): {"base, SWA": "96.75", "late-phase, SWA": "97.45"},
    ("wrn-28-14", "cifar100", 0, ""): {"base, SWA": "84.01", "late-phase, SWA": "85.00"},
    ("wrn-28-10", "cifar10", 10000, ""): {"base": "88.98", "late-phase": "89.58"},
    ("wrn-28-10, dropout 0.2", "cifar10", 0, ""): {"base": "96.02"},
    ("wrn-28-10, hypernetwork", "cifar100", 0, ""): {
        "late-phase": "81.55",
        "late-phase, SWA": "82.01",
    },
    ("wrn-28-10, all weights late-phase", "cifar10", 0, ""): {"late-phase": "96.32"},
    ("wrn-28-10, all weights late-phase", "cifar100", 0, ""): {"late-phase": "82.17"},
    ("pyramidnet-272-200", "cifar100", 0, ""): {"base": "84.04", "late-phase": "84.35"},
}
# Weight sets of a results.json, and what follows the model's name for each.
SETS = {
    "current": ", one member",
    "collapsed": "",
    "swa": ", SWA",
    "ensemble": ", members' predictions averaged",
}
COLUMNS = [metric_names.METRICS[name] for name in ("accuracy", "nll", "ece", "brier")]
DATASETS = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}


# Settings that turn it into another network, and what that is called there.
VARIANTS = {
    "dropout": "dropout {}",
    "hypernetwork": "hypernetwork",
    "late_rank1": "rank-1 kernels",
    "late_all": "all weights late-phase",
}


def network_of(config):
    network = {"wrn": "wrn-{depth}-{width}", "pyramidnet": "pyramidnet-{depth}-{alpha:g}"}.get(
        config["network"], config["network"]
    )
    variants = [text.format(config[name]) for name, text in VARIANTS.items() if config.get(name)]
    return ", ".join([network.format(**config), *variants])


def control_of(config):
    """Which of the paper's controls the settings make; "" for none."""
    controls = {
        "pretrained": config.get("pretrained"),
        "T0 0": config["t0"] == 0 and not config.get("pretrained"),
        "frozen base": config.get("freeze_base"),
        "small γ": config["gamma"] < 1,
        "constant rate": config["final_learning_rate"] == config["learning_rate"],
    }
    return ", ".join(control for control, holds in controls.items() if holds)


def render(config, results):
    """The table as lines of Markdown."""
    network, dataset, images = network_of(config), config["dataset"], config["train_images"]
    paper = PAPER.get((network, dataset, images, control_of(config)), {})
    head = f"{network}, {DATASETS[dataset]}" + (f", {images:,} images" if images else "")
    runs = run_table.runs_of(results)
    # Runs from before the Brier score was introduced have none.
    measured = [run["test"][weights] for run in runs for weights in SETS if weights in run["test"]]
    columns = [column for column in COLUMNS if any(column.name in metrics for metrics in measured)]
    heads = [column.head for column in columns]
    rows = []
    for model in ("base", "late-phase", "accumulation", "lower-rate", "batch-ensemble"):
        mine = [run for run in runs if run["model"] == model]
        for weights, suffix in SETS.items():
            if (model, weights) == ("batch-ensemble", "ensemble"):
                continue  # its only prediction
            metrics = [run["test"][weights] for run in mine if weights in run["test"]]
            if not metrics:
                continue
            of = lambda column: [
                column.scale * one[column.name]
                for one in metrics
                if one.get(column.name) is not None
            ]
            cells = [run_table.number(of(column), column.digits) for column in columns]
            rows.append([model.capitalize() + suffix, *cells, paper.get(model + suffix, "–")])
    lines = text_table.render([head, f"test {heads[0]}", *heads[1:], "paper: accuracy %"], rows)
    return lines + model_differences.render("cifar", runs)


def render_cost(config, result):
    """Time and memory of a short run."""
    step, steps_per_epoch = result["seconds"] / result["steps"], result["steps"] / result["epochs"]
    return text_table.render(
        [
            f"{network_of(config)}, {DATASETS[config['dataset']]}, batch {config['batch']}",
            "parameters",
            "s/step",
            "peak memory",
            "an epoch",
        ],
        [
            [
                f"{config['model'].capitalize()}, {result['steps']} steps, {result['threads']} "
                "threads",
                f"{result['parameters']:,}",
                f"{step:.1f}",
                f"{result['peak_bytes'] / 1e9:.1f} GB",
                f"{step * steps_per_epoch / 3600:.1f} h",
            ]
        ],
    )
