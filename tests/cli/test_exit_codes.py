"""The table of exit codes names exceptions that are there: a moved one would end in a traceback."""

from importlib import import_module

import pytest

from kernelwright.terminal import CODES, FELL_SHORT, MACHINE_LACKS, USER_MISTAKE


@pytest.mark.parametrize("module", CODES)
def test_every_exception_of_the_table_is_where_it_says(module):
    for name, code in CODES[module].items():
        assert issubclass(getattr(import_module(module), name), Exception)
        assert code in (FELL_SHORT, USER_MISTAKE, MACHINE_LACKS)
