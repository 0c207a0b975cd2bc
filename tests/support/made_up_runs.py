"""Made-up enwik8 runs, whose numbers can be worked out by hand."""

import json
import math

CONFIG = {
    "program": "enwik8",
    "units": 128,
    "train_characters": 8000000,
    "learning_rate": 0.003,
    "member_learning_rate": 0.0003,
    "epochs": 12.0,
    "members": 10,
    "t0": 7.0,
    "sigma": 0.1,
    "gamma": 1.0,
    "late_rate": 0.0,
    "swa_start": 7.0,
    "swa_every": 0.25,
}
END = 2.4  # validation loss at the end
SLOPE = 0.03  # of the loss over the logarithm of the epoch


def make_run(folder, model="rank1", seed=0, loss=END, swa=None, slope=SLOPE, epochs=12, **config):
    """As the trainer leaves it: the loss ends at `loss`, and has fallen by `slope` · ln(epoch).
    Test is 0.05 higher.
    """
    folder.mkdir(parents=True)
    settings = {**CONFIG, "model": model, "seed": seed, "epochs": float(epochs), **config}
    text = "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items())
    (folder / "config.toml").write_text(text)
    rows, per_epoch = [], 10
    curve = lambda epoch: loss + slope * math.log(epochs / epoch)
    for step in range(1, epochs * per_epoch + 1):
        epoch = step / per_epoch
        # In training the loss falls twice as fast: what counts is validation.
        rows.append({"kind": "train", "step": step, "epoch": epoch, "bpc": 2 * curve(epoch)})
        if step % per_epoch == 0:
            evaluation = {"kind": "evaluation", "step": step, "epoch": epoch, "bpc": curve(epoch)}
            rows.append({**evaluation, "split": "validation", "weights": "collapsed"})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    weights = {"collapsed": loss} | ({} if swa is None else {"swa": swa})
    results = {"program": "enwik8", "model": model, "seed": seed, "epochs": float(epochs)}
    for split, more in (("validation", 0), ("test", 0.05)):
        results[split] = {name: {"bpc": value + more} for name, value in weights.items()}
    (folder / "results.json").write_text(json.dumps(results))
    return folder
