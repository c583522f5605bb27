import re
import subprocess
import sys
from pathlib import Path

import pytest

from kernelwright.programs.compare import Comparison, words

ROOT = Path(__file__).parents[2]
BIRDS = ROOT / "examples" / "birds"


def said(*words, code=0):
    done = subprocess.run([sys.executable, *map(str, words)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in ((code,) if isinstance(code, int) else code), done.stdout + done.stderr
    return done.stdout


def test_the_commands_are_those_of_the_makefile():
    recipe = re.search(r"^example:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)[1]
    assert [line.split()[1] for line in recipe.splitlines()] == [
        "capture",
        "run",
        "$(BIRDS)/use.py",
        "compare",
        "export",
    ]


@pytest.mark.long
def test_the_example_goes_the_whole_way(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELWRIGHT_CACHE", str(tmp_path / "cache"))
    us, run = ("-m", "kernelwright"), tmp_path / "run"
    said(*us, "capture", BIRDS / "birds.py", "--top", 2, "--out", tmp_path / "capture")
    told = said(*us, "run", tmp_path / "capture", "--top", 2, "--folder", BIRDS / "answers", "--out", run)
    assert "contrast_1" in told and "tonal_1" in told
    told = said(BIRDS / "use.py", run)
    assert "what it gave: True" in told and "loads back: True" in told
    assert "differ by 0.0e+00" in told and "another shape (1)" in told
    picture = tmp_path / "birds.svg"
    flags = ("--run", run, "--processes", 2, "--compile", "none", "--picture", picture)
    compared = said(*us, "compare", BIRDS / "birds.py", *flags, "--json", code=(0, 1))
    told = words(Comparison.model_validate_json(compared))
    assert "taken 1 times a sample" in told and "REFUSED" not in told
    assert picture.read_text().startswith("<svg")
    assert "OK" in said(*us, "export", run, "--package", tmp_path / "listener_kernels")
