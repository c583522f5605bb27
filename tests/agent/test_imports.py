"""Importing the search is quick: what is heavy is loaded when it is used."""

import subprocess
import sys
from pathlib import Path

MODULES = (
    "kernelwright.agent.engine, kernelwright.agent.log.best, "
    "kernelwright.agent.providers.server, kernelwright.agent.providers.recorded, "
    "kernelwright.agent.strategies"
)


def test_importing_the_search_loads_neither_torch_nor_openai():
    program = f"import sys, {MODULES}; print(sorted({{'torch', 'openai'}} & sys.modules.keys()))"
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
