import sys

import anyio
import pytest

from tests.support.replies import OWN, REFERENCE, WRONG

mcp = pytest.importorskip("mcp", reason="mcp is not installed; `pip install 'kernelwright[mcp]'` to run this")
pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path):
    for name, text in (("scaled.py", REFERENCE), ("own.py", OWN), ("wrong.py", WRONG)):
        (tmp_path / name).write_text(text)
    return tmp_path


def session(folder, talk, *words):
    """Talk to a server that reads below `folder`; what the talk returns."""
    arguments = ["-m", "kernelwright", "mcp", "--folder", str(folder), *words]

    async def run():
        with anyio.fail_after(300):
            async with mcp.Client(mcp.StdioServerParameters(command=sys.executable, args=arguments)) as client:
                return await talk(client)

    return anyio.run(run)


def said(result):
    return result.content[0].text


def test_it_offers_its_tools_with_the_rules_of_evidence(folder):
    async def talk(client):
        return client.instructions, (await client.list_tools()).tools

    rules, tools = session(folder, talk)
    assert {one.name for one in tools} == {
        "list_problems", "read_problem", "read_prompt", "judge", "profile", "best_so_far"
    }  # fmt: skip
    assert "verdict of `judge`" in rules
    assert all(one.annotations.read_only_hint for one in tools)


def test_a_kernel_is_judged_with_progress_and_is_then_the_best(folder):
    told = []

    async def heard(progress, total, message):
        told.append((progress, message))

    async def talk(client):
        asked = {"problem": "scaled.py", "path": "own.py"}
        right = await client.call_tool("judge", asked, progress_callback=heard)
        return right, await client.call_tool("best_so_far", {"problem": "scaled.py"})

    right, best = session(folder, talk)
    assert right.structured_content["outcome"] == "passed", said(right)
    assert "speedup against eager" in said(right)
    assert "scale_add_row_sum" in said(best)
    assert told[0] == (0, "judging, 0 s")
    assert [one[0] for one in told] == sorted({one[0] for one in told})


def test_a_wrong_one_is_a_verdict_and_what_can_not_be_asked_is_an_error_with_its_remedy(folder):
    async def talk(client):
        wrong = await client.call_tool("judge", {"problem": "scaled.py", "source": WRONG})
        refused = await client.call_tool("judge", {"problem": "scaled.py", "path": "/etc/passwd"})
        return wrong, refused, await client.call_tool("best_so_far", {"problem": "scaled.py"})

    wrong, refused, best = session(folder, talk)
    assert not wrong.is_error
    assert said(wrong).startswith("failed at check")
    assert refused.is_error
    assert "no .py file below" in said(refused)
    assert said(best).startswith("nothing right yet")


WRONG_ARGUMENTS = {
    "an unknown target": (
        "read_prompt",
        {"problem": "rms_norm", "target": "rust"},
        "target is 'rust'; it should be 'cpp'",
    ),
    "a number as size": ("read_problem", {"problem": "rms_norm", "size": 3}, "size is 3; it should be a valid string"),
    "no problem": ("judge", {"source": "x"}, "it needs problem; give it"),
    "an unknown size": (
        "best_so_far",
        {"problem": "rms_norm", "size": "tiny"},
        "problem 'rms_norm' has no size 'tiny'",
    ),
    "a list as source": ("profile", {"problem": "rms_norm", "source": ["x"]}, "source is ['x']; it should be a valid"),
}


def test_wrong_arguments_of_every_tool_are_told_in_one_sentence(folder):
    async def talk(client):
        return {name: await client.call_tool(*words[:2]) for name, words in WRONG_ARGUMENTS.items()}

    for name, told in session(folder, talk).items():
        tool, _, sentence = WRONG_ARGUMENTS[name]
        assert told.is_error
        assert said(told).startswith(f"Error executing tool {tool}: {sentence}")
        assert "\n" not in said(told) and "http" not in said(told)


@pytest.mark.long
def test_on_a_processor_a_profile_says_how_many_cores_are_busy(folder):
    async def talk(client):
        return await client.call_tool("profile", {"problem": "scaled.py", "path": "own.py"})

    assert "cores busy" in said(session(folder, talk))


def test_whoever_cancels_is_served_again(folder):
    async def talk(client):
        with anyio.move_on_after(1):
            await client.call_tool("judge", {"problem": "scaled.py", "path": "own.py"})
        return await client.call_tool("judge", {"problem": "scaled.py", "source": "no python ("})

    assert said(session(folder, talk)).startswith("failed at scan")
