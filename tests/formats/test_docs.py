"""What docs/formats.md and docs/library.md show is done here."""

import re
import shlex
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.formats.test_commands import kernelwright
from tests.model_server import Server, fenced
from tests.problems.foreign import PLAIN
from tests.test_readme import RMS_NORM

ROOT = Path(__file__).parent.parent.parent
RIGHT = PLAIN.replace("class Model(", "class ModelNew(")
pytestmark = [pytest.mark.long, pytest.mark.slow]


def blocks(page, language):
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "docs" / page).read_text(), flags=re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A KernelBench with three problems, someone's run, and a candidate."""
    root = tmp_path_factory.mktemp("docs")
    (root / "KernelBench/level1").mkdir(parents=True)
    for number in (3, 7, 12):
        (root / f"KernelBench/level1/{number}_Double.py").write_text(PLAIN)
    (root / "runs/theirs").mkdir(parents=True)
    (root / "runs/theirs/level_1_problem_3_sample_0_kernel.py").write_text(RIGHT)
    (root / "candidate.py").write_text(RIGHT)
    server = Server([fenced(RIGHT)] * 3)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    # Work folders and turns of its own: what else is timed on this machine is not waited for.
    (root / "tmp").mkdir()
    yield root, {"OPENAI_BASE_URL": server.base_url, "OPENAI_API_KEY": "none", "TMPDIR": str(root / "tmp")}
    server.shutdown()
    server.server_close()


def test_the_commands_of_the_formats_page_work_in_their_order(folder):
    root, environment = folder
    for block in blocks("formats.md", "sh"):
        for line in block.splitlines():
            words = shlex.split(line, comments=True)
            if "--suite" in words:
                words += ["--out", "runs/TIME"]
            done = kernelwright(root, *words[1:], **environment)
            # A busy machine may find a problem of this size too short to be timed, which `check` reports with 1.
            fine = (0, 1) if "check" in words else (0,)
            assert done.returncode in fine, f"{line}: {done.stdout}{done.stderr}"


@pytest.mark.parametrize("number", range(len(blocks("library.md", "python"))))
def test_the_python_of_the_library_page_works(tmp_path, monkeypatch, number):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    (tmp_path / "candidate.py").write_text(RMS_NORM)
    code = blocks("library.md", "python")[number]
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r"\[\d.*, 0.0\]|True None|passed", done.stdout), done.stdout


@pytest.mark.parametrize("page", ["formats.md", "library.md"])
def test_links_lead_somewhere(page):
    text = (ROOT / "docs" / page).read_text()
    assert all((ROOT / "docs" / link).exists() for link in re.findall(r"\]\(([^)#]+)\)", text))
