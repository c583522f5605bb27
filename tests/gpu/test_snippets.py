"""Every program that prompts take their instructions from, built, run and checked on the card; a line each.

All of them by one command: `python -m pytest -m gpu tests/gpu/test_snippets.py -q`.
"""

import time

import pytest
import torch

from tests.support.snippets import NO_COMPILER, PROGRAMS, build, run

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(NO_COMPILER is not None, reason=NO_COMPILER or "")]


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_card_does_what_the_snippet_says(name, device, tmp_path, capsys):
    capability = torch.cuda.get_device_capability()
    if capability != (9, 0):
        pytest.skip(f"the programs are for compute capability 9.0, and the device has {capability[0]}.{capability[1]}")
    started = time.monotonic()
    program = build(name, tmp_path)
    built = time.monotonic()
    done = run(program.path)
    with capsys.disabled():
        outcome = "right" if done.returncode == 0 else "WRONG"
        print(f"\n{name}: {outcome}, built in {built - started:.1f} s, run in {time.monotonic() - built:.1f} s")
        print(done.stdout, end="")
    assert done.returncode == 0, done.stdout + done.stderr
