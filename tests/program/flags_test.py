"""python/late_phase_cli/flags.json says what the program says of its flags."""

import pytest
from late_phase_cli import program_flags

from tools.develop import record_flags


@pytest.mark.parametrize("command", record_flags.COMMANDS)
def test_the_recorded_flags_are_the_programs(command):
    # If not: tools/latephase python -m tools.develop.record_flags --write
    assert program_flags.recorded()[command] == record_flags.describe(command)


def test_no_other_command_is_recorded():
    assert set(program_flags.recorded()) == set(record_flags.COMMANDS)
