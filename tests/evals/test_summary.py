import random

import pytest

from kernelwright.agent.log.run_log import RunLog
from kernelwright.agent.log.view import fold
from kernelwright.evals.report import summary_rows, summary_table
from tests.support.runs import Writer, failed, passed, problem, setting
from tests.support.second_verdicts import shown

LONGEST = "conv_transpose2d_grouped_asymmetric"


@pytest.fixture
def views(tmp_path):
    names = (LONGEST, "rms_norm")
    with RunLog.create(tmp_path / "run", [problem(name) for name in names], setting()) as log:
        for name, verdicts in zip(names, ([failed("build"), passed(12.5), passed(8.0)], [None]), strict=True):
            writer = Writer(log, name, random.Random(0))
            for verdict in verdicts:
                writer.attempt(verdict)
            writer.stop()
        return [fold(name, log.events(name)) for name in names]


def test_a_terminal_of_80_columns_shows_each_problem_in_one_line(views):
    first, second = (line.split(maxsplit=4) for line in shown(summary_table(views), width=80).splitlines()[3:5])
    assert first[:4] == [LONGEST, "2", "of", "3"]
    assert first[4].startswith("12.") and first[4].rstrip().endswith("]")
    assert [*second[:4], second[4].rstrip()] == ["rms_norm", "0", "of", "1", "1 no candidate (refusal)"]


def test_for_programs_the_row_has_the_path_of_the_kept_kernel(views, tmp_path):
    rows = summary_rows(views, tmp_path)
    assert [row["kept"] for row in rows] == [str(tmp_path / "best" / LONGEST / "candidate.py"), None]
