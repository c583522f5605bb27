"""Tools of a coding agent without the protocol: reading, refusing, and the best kernel."""

import asyncio
import json

import pytest

from kernelwright.problems import load_problem
from kernelwright.problems.loading import CATALOG
from tests.support.replies import REFERENCE

pytest.importorskip("mcp", reason="mcp is not installed; `pip install 'kernelwright[mcp]'` to run this")
from kernelwright.integrations.mcp_server import LONGEST_TEXT, AgentTools, ToolRefused


@pytest.fixture
def tools(tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "scaled.py").write_text(REFERENCE)
    (tmp_path / "secret.py").write_text(REFERENCE)
    (folder / "link.py").symlink_to(tmp_path / "secret.py")
    return AgentTools(folder)


def judged(tools, *words):
    return asyncio.run(tools.judge(*words))


def test_the_catalog_is_listed_and_a_problem_is_shown_with_its_rules(tools):
    assert "rms_norm: " in tools.problems()
    shown = tools.problem("rms_norm", "gpu")
    assert '"operators": "any"' in shown
    assert "class Model" in shown


def test_a_problem_of_ones_own_is_read_below_the_folder(tools):
    assert "x.sum(dim=1" in tools.problem("scaled.py")


OUTSIDE = ("/etc/passwd", "../secret.py", "link.py", "a\0.py", "x" * 5000)


@pytest.mark.parametrize("name", [*OUTSIDE, "rms_nrm", "/etc::passwd"])
def test_no_other_file_is_read_as_a_problem(tools, name):
    with pytest.raises(ToolRefused, match="list_problems"):
        tools.problem(name)


@pytest.mark.parametrize("linked", ["reference.py", "problem.toml"])
def test_no_link_in_a_problems_folder_leads_out_of_the_servers(tools, tmp_path, linked):
    texts = {name: (CATALOG / "rms_norm" / name).read_text() for name in ("reference.py", "problem.toml")}
    for place in ("inside", "outside"):
        (folder := (tools.folder if place == "inside" else tmp_path) / place).mkdir()
        for name, text in texts.items():
            (folder / name).write_text(text)
    (tools.folder / "linked").symlink_to(tools.folder / "inside")
    assert "class Model" in tools.problem("./linked"), "a link within it is followed"
    (tools.folder / "inside" / linked).unlink()
    (tools.folder / "inside" / linked).symlink_to(tmp_path / "outside" / linked)
    with pytest.raises(ToolRefused, match="leads out"):
        tools.problem("./linked")


@pytest.mark.parametrize(
    ("source", "path", "said"),
    [
        (None, None, "one of source and path"),
        ("x", "scaled.py", "one of source and path"),
        ("scaled.py", None, "'scaled.py'.* path$"),
        ("none.py", None, "'none.py'.* path$"),
        ("#" * (2**20 + 1), None, "1048577 characters"),
        *((None, path, r"is no \.py file below") for path in (*OUTSIDE, ".", "none.py")),
    ],
)
def test_a_candidate_is_given_in_one_way_and_no_other_file_is_read_as_one(tools, source, path, said):
    with pytest.raises(ToolRefused, match=said):
        judged(tools, "scaled.py", source, path)


def test_a_long_problem_is_cut_and_says_so(tools):
    (tools.folder / "long.py").write_text(REFERENCE + "# much\n" * LONGEST_TEXT)
    shown = tools.problem("long.py")
    assert len(shown) < LONGEST_TEXT + 1000
    assert "characters left out" in shown


def test_a_prompt_for_a_gpu_is_at_its_size(tools):
    assert load_problem("rms_norm", "gpu").source.strip() in tools.prompt("rms_norm", "cuda")


def test_where_nothing_is_right_yet_that_is_said(tools):
    for name in ("scaled.py", "rms_norm"):
        assert "nothing right" in tools.best(name) and name in tools.best(name)


def test_the_best_of_a_run_counts_for_the_same_problem_alone(tools, tmp_path):
    from tests.integrations.test_reward import passed

    folder = tmp_path / "run" / "best" / "scaled"
    folder.mkdir(parents=True)
    (folder / "candidate.py").write_text("# of the run\n")
    problem = load_problem(str(tools.folder / "scaled.py"))
    record = passed(3.0) | {"problem_digest": problem.digest, "attempt": 4, "run": "r"}
    (folder / "verdict.json").write_text(json.dumps(record))
    shown = AgentTools(tools.folder, run=tmp_path / "run").best("scaled.py")
    assert "attempt 4 of r\npassed" in shown
    assert "# of the run" in shown
    (folder / "verdict.json").write_text(json.dumps(record | {"problem_digest": "another"}))
    assert AgentTools(tools.folder, run=tmp_path / "run").best("scaled.py").startswith("nothing right yet")


@pytest.mark.slow
def test_calls_at_once_share_one_judge_and_another_device_or_a_profile_has_its_own(tools):
    async def asked():
        async with tools:
            wanted = [("cpu", False)] * 4 + [("cuda", True)]
            return [tools._pool_on(*one) for one in wanted]

    *same, other = asyncio.run(asked())
    assert len(set(same)) == 1 and other not in same
