"""The table of exit codes names exceptions that are there, each once: a renamed one would end in a traceback."""

import re

import pytest
import typer

from kernelwright.terminal import CODES, with_exit_codes
from tests import structure


@pytest.fixture(scope="module")
def classes():
    texts = [module.path.read_text(encoding="utf-8") for module in structure.modules().values()]
    return re.findall(r"^class (\w+)\b", "\n".join(texts), re.MULTILINE)


@pytest.mark.parametrize("name", CODES)
def test_a_name_of_the_table_is_one_class(classes, name):
    assert classes.count(name) == 1


def test_an_error_that_is_derived_from_another_has_its_own_code_and_other_errors_stay_loud():
    from kernelwright.agent.providers import AnswerPending

    @with_exit_codes
    def command(error):
        raise error

    with pytest.raises(typer.Exit) as ended:
        command(AnswerPending("later"))
    assert ended.value.exit_code == CODES["AnswerPending"] != CODES["ProviderError"]
    with pytest.raises(KeyError):
        command(KeyError("ours"))
