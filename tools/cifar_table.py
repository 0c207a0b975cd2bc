"""The table of a CIFAR run, or of a folder of runs, beside the paper's: python tools/cifar_table.py RUN"""

from tools.run_table import main, number, runs_of

# Test accuracy in % by network, dataset and training images; for SGD, or where it says so for SWA.
PAPER = {
    ("convnet", "cifar10", 0): {"base": "77.41 ±0.23", "late-phase": "77.94 ±0.37"},
    ("wrn-28-10", "cifar10", 0): {
        "base": "96.16 ±0.12", "late-phase": "96.46 ±0.15", "base, SWA": "96.48", "late-phase, SWA": "96.81"},
    ("wrn-28-10", "cifar100", 0): {
        "base": "81.35 ±0.16", "late-phase": "82.87 ±0.22", "base, SWA": "82.46 ±0.09", "late-phase, SWA": "83.06 ±0.08"},
    ("wrn-28-14", "cifar10", 0): {"base, SWA": "96.75", "late-phase, SWA": "97.45"},
    ("wrn-28-14", "cifar100", 0): {"base, SWA": "84.01", "late-phase, SWA": "85.00"},
    ("wrn-28-10", "cifar10", 10000): {"base": "88.98", "late-phase": "89.58"},
}
# Weight sets of a results.json and what they are called behind the model's name.
SETS = {"current": ", one member", "collapsed": "", "swa": ", SWA", "ensemble": ", members' predictions averaged"}
DATASETS = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}


def network_of(config):
    return config["network"] if config["network"] == "convnet" else f"wrn-{config['depth']}-{config['width']}"


def render(config, results):
    """The table as lines of Markdown."""
    network, dataset, images = network_of(config), config["dataset"], config["train_images"]
    paper = PAPER.get((network, dataset, images), {})
    head = f"{network}, {DATASETS[dataset]}" + (f", {images:,} images" if images else "")
    lines = [f"| {head} | test accuracy % | NLL | ECE | paper: accuracy % |", "|---|---|---|---|---|"]
    runs = runs_of(results)
    for model in ("base", "late-phase"):
        mine = [run for run in runs if run["model"] == model]
        for weights, suffix in SETS.items():
            figures = [run["test"][weights] for run in mine if weights in run["test"]]
            if not figures:
                continue
            cells = (number([100 * one["accuracy"] for one in figures], 2), number([one["nll"] for one in figures], 4),
                     number([one["ece"] for one in figures], 4))
            lines.append("| " + " | ".join((model.capitalize() + suffix, *cells, paper.get(model + suffix, "–"))) + " |")
    return lines


def render_cost(config, result):
    """Time and memory of a short run."""
    step, steps_per_epoch = result["seconds"] / result["steps"], result["steps"] / result["epochs"]
    return [
        f"| {network_of(config)}, {DATASETS[config['dataset']]}, batch {config['batch']} | parameters | s/step | peak memory | an epoch |",
        "|---|---|---|---|---|",
        f"| {config['model'].capitalize()}, {result['steps']} steps, {result['threads']} threads | {result['parameters']:,} | {step:.1f} | "
        f"{result['peak_bytes'] / 1e9:.1f} GB | {step * steps_per_epoch / 3600:.1f} h |",
    ]


if __name__ == "__main__":
    main("cifar_table.py", render)
