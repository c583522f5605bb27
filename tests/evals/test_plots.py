import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from kernelwright.agent.log.store import RunLog
from kernelwright.evals.inspector.pages import RunModel, export
from kernelwright.evals.plots import axis_for, picture
from kernelwright.evals.runs import suite
from tests.support.runs import ended, failed, made_run, passed, problem, setting

SHOWN = Path(__file__).parents[2] / "docs/pictures/demo.svg"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def made(tmp_path):
    made_run(tmp_path / "run", problems=3, attempts=12)
    return tmp_path / "run"


def drawn(folder):
    with RunLog.open(folder) as log:
        return ElementTree.fromstring(picture(log.header, RunModel(log).views))


def words(root):
    return [text.text or "" for text in root.iter(f"{SVG}text")]


def test_each_right_attempt_is_a_point_in_its_problem_s_row(made):
    with RunLog.open(made) as log:
        model = RunModel(log)
        right = [one for view in model.views.values() for one in view.attempts if one.speedup is not None]
    root = drawn(made)
    assert len(list(root.iter(f"{SVG}circle"))) == len(right)
    assert {"problem_0", "problem_1", "problem_2"} <= set(words(root))


def test_the_same_run_gives_the_same_picture(made, tmp_path):
    for name in ("one.svg", "two.svg"):
        export(made, tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_a_picture_asks_for_nothing(made):
    with RunLog.open(made) as log:
        text = picture(log.header, RunModel(log).views)
    assert text.count("http") == 1  # the name of the format
    assert "url(" not in text and "@import" not in text


def one_problem(folder, verdict, **names):
    return words(drawn(ended(folder, verdict, of=problem("mine"), chosen=setting(**names))))


def test_a_model_s_name_stays_text(tmp_path):
    found = one_problem(tmp_path / "run", passed(2.0), model="<script>alert(1)</script>&\x07")
    assert any("<script>alert(1)</script>&?" in text for text in found)


def test_a_problem_without_a_right_attempt_says_so(tmp_path):
    found = one_problem(tmp_path / "run", failed("build"))
    assert "none correct yet" in found and any("1 failed at build" in text for text in found)


def test_the_best_is_told_with_its_interval(tmp_path):
    found = one_problem(tmp_path / "run", passed(2.0))
    assert any(text.startswith("2.0") and text.endswith("faster") for text in found)


@pytest.mark.parametrize("speedups", [[], [0.07, 12.0], [1.0], [1e-9, 1e9]])
def test_an_axis_holds_one_and_what_was_measured(speedups):
    axis = axis_for(speedups)
    assert axis.low < 1 < axis.high and 1.0 in axis.ticks
    places = [axis.at(one) for one in sorted(speedups)]
    assert places == sorted(places) and len(axis.ticks) <= 10


def test_the_picture_of_the_readme_shows_the_demo():
    shown = set(words(ElementTree.parse(SHOWN).getroot()))
    assert set(suite("demo", "cpp")) <= shown
