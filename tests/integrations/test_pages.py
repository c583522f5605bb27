import json
import re
import subprocess
import sys

import pytest

from tests.docs.pages import DOCS, blocks
from tests.docs.walking import RMS_NORM

PAGE = DOCS / "integrate.md"
PYTHON = blocks(PAGE, "python")


def block(word):
    (found,) = [one for one in PYTHON if word in one]
    return found


def done(code, folder):
    (folder / "candidate.py").write_text(RMS_NORM)
    ran = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_every_example_is_tried():
    tried = ("RewardTerms(", "with CompletionScorer()", "GRPOTrainer(", "KernelTaskset(", "GenericEnvClient(")
    found = [next((word for word in tried if word in one), None) for one in PYTHON]
    assert [word for word in found if word] == list(tried)


def test_the_reward_of_the_page_is_half_of_the_way_to_the_floor(tmp_path):
    first, second, third = done(block("RewardTerms("), tmp_path).splitlines()
    assert 0.63 < float(first) < 0.66
    assert "('impossible',)" in second
    assert float(third) < float(first)


def test_the_page_has_the_numbers_and_the_flags_that_there_are():
    from kernelwright.integrations.reward import Flag, RewardTerms

    page, terms = PAGE.read_text(), RewardTerms()
    assert f"`right` ({terms.right:g}), `full_speedup` ({terms.full_speedup:g})" in page
    table = re.findall(r"^\| (?:passed|failed|no verdict).*", page, re.MULTILINE)
    assert set(re.findall(r"\| `(\w+)`[^|]*\|$", "\n".join(table), re.MULTILINE)) == set(Flag.__args__)


@pytest.mark.slow
@pytest.mark.long
def test_completions_are_scored_as_the_page_shows(tmp_path):
    told = done(block("with CompletionScorer()"), tmp_path)
    assert "only own kernels count" in told
    assert "no candidate" in told


@pytest.mark.slow
def test_the_trainer_of_the_page_can_be_made(tmp_path):
    pytest.importorskip("trl", reason="trl is not installed; `pip install trl` beside kernelwright to run this")
    from tests.support.replies import tiny

    for part in tiny():
        part.save_pretrained(tmp_path / "model")
    code = block("GRPOTrainer(").replace('"MODEL"', '"model"').replace("8192)", "8192, use_cpu=True, report_to=[])")
    code = code.replace("trainer.train()", "print(trainer.reward_funcs)")
    assert "KernelReward" in done(code, tmp_path)


@pytest.mark.slow
def test_the_taskset_of_the_page_has_its_tasks(tmp_path):
    pytest.importorskip("verifiers.v1", reason="verifiers is not installed; `pip install verifiers` to run this")
    assert re.match(r"rms_norm \d{4,}\nsoftmax_rows \d{4,}\n", done(block("KernelTaskset("), tmp_path))


@pytest.mark.slow
def test_the_environment_of_the_page_answers(tmp_path):
    pytest.importorskip("openenv", reason="openenv-core is not installed; `pip install openenv-core` to run this")
    words = re.search(r"^uvicorn (.+?) +#", PAGE.read_text(), re.MULTILINE)[1].split()
    server = subprocess.Popen(
        [sys.executable, "-m", "uvicorn", *words, "--port", "0"], stderr=subprocess.PIPE, text=True, cwd=tmp_path
    )
    try:
        port = next(found[1] for line in server.stderr if (found := re.search(r"running on http://[\d.]+:(\d+)", line)))
        told = done(block("GenericEnvClient(").replace("8000", port), tmp_path)
    finally:
        server.terminate()
        server.wait()
    assert told.startswith("0.0 False []") and "failed at check" in told


@pytest.mark.slow
def test_an_agent_that_reads_the_page_s_file_has_the_tools(tmp_path):
    mcp = pytest.importorskip("mcp", reason="mcp is not installed; `pip install 'kernelwright[mcp]'` to run this")
    import anyio

    told = json.loads(blocks(PAGE, "json")[0])["mcpServers"]["kernelwright"]
    words = ["-m", told["command"].rpartition("/")[2], *told["args"]]

    async def asked():
        server = mcp.StdioServerParameters(command=sys.executable, args=words, cwd=tmp_path)
        async with mcp.Client(server) as client:
            return {one.name for one in (await client.list_tools()).tools}

    section = PAGE.read_text().partition("## Coding agents")[2]
    named = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    assert anyio.run(asked) == set(named)
