"""The memory that a run is expected to take, by which one that does not fit is refused, against
what it takes.
"""

import pytest

from tests.support import cifar_files, program_runs

# Small minibatches where the variables are to count.
WRN = (
    "--network wrn --depth 16 --steps 2 --epochs 1000 --evaluate-every 0 --checkpoint-every 2 "
    "--pad 0 --cutout 0"
).split()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return cifar_files.write_cifar(tmp_path_factory.mktemp("cifar"), train_per_file=60, test=20)


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param("--model base --width 4 --batch 128", id="minibatch"),
        pytest.param(
            "--model late-phase --width 4 --batch 8 --members 30 --t0 0 --late-all true",
            id="members",
        ),
        pytest.param("--model late-phase --width 8 --batch 8 --members 10 --t0 0", id="sums"),
        pytest.param(
            "--model base --width 8 --batch 8 --swa-start 0 --swa-every 0.001 --swag-rank 10",
            id="swag",
        ),
    ],
)
def test_expected_memory_is_within_a_tenth_of_the_peak(tmp_path, files, flags):
    program_runs.train("cifar", files, tmp_path / "run", *WRN, "--swa-start", -1, *flags.split())
    results = program_runs.read_results(tmp_path / "run")
    assert results["expected_bytes"] == pytest.approx(results["peak_bytes"], rel=0.1)
