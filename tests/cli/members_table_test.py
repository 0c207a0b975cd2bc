"""What members add to accumulation, on made-up runs."""

from late_phase_cli import law_table, members_table
from tests.support.made_up_runs import END, make_run


def train(folder, late, accumulated, seed, **settings):
    """The same network with members and with accumulation alone."""
    for model, loss in (("late-phase", late), ("rank1-accumulation", accumulated)):
        make_run(folder / f"{model}-{seed}", model, seed, loss, loss - 0.01, **settings)


def rows_of(tmp_path):
    found = members_table.added(law_table.read_all(f"{tmp_path}/*"))
    lines = members_table.render(found)
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| rank1")]
    return rows, lines[-1]


def test_settings_are_sorted_by_what_members_add(tmp_path):
    for seed, noise in enumerate((0.0, 0.002, 0.004)):
        train(tmp_path / "worse", END + 0.02 + noise, END, seed, sigma=0.35)
        train(tmp_path / "better", END - 0.01 - noise, END, seed, sigma=0.0, factors="whole")
    train(tmp_path / "one seed", END - 0.1, END, 0, members=5)
    rows, summary = rows_of(tmp_path)
    assert [(row[1], row[2], row[4]) for row in rows] == [
        ("5", "1", "1 of 1"),
        ("10", "3", "3 of 3"),
        ("10", "3", "0 of 3"),
    ]
    assert rows[0][3] == "-0.100"  # one seed has no interval, and is no best
    assert rows[1][3] == "-0.012 ± 0.005" and rows[1][0].endswith("of the whole kernel, σ0 0")
    assert rows[2][3] == "+0.022 ± 0.005" and rows[2][5] == "+0.022 ± 0.005"
    assert summary.startswith(
        "Of the 2 settings with several seeds, best: -0.012 ± 0.005 (K 10, 128"
    )
    assert "worst: +0.022 ± 0.005 (K 10, 128 units" in summary


def test_only_the_same_network_from_the_same_t0_on_is_compared(tmp_path):
    make_run(tmp_path / "late", "late-phase", 0, END, END)
    others = {"t0": 6.0, "members": 5, "gamma": 0.1, "learning_rate": 0.001, "optimizer": "sgd"}
    for name, value in others.items():
        make_run(tmp_path / name, "rank1-accumulation", 0, END, END, **{name: value})
    make_run(tmp_path / "seed", "rank1-accumulation", 1, END, END)
    make_run(tmp_path / "base", "accumulation", 0, END, END)
    assert members_table.added(law_table.read_all(f"{tmp_path}/*")) == []
    make_run(tmp_path / "same", "rank1-accumulation", 0, END, END, sigma=0.5, optimizer="adam")
    (one,) = members_table.added(law_table.read_all(f"{tmp_path}/*"))
    assert one.differences["collapsed"].mean == 0
