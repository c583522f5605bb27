"""Doing what a page says, in a folder in which its reader would be."""

import re
import subprocess
import sys

from tests.support.commands import run_with
from tests.support.problems import PROBLEM, RIGHT
from tests.support.servers import fake_reply

RMS_NORM = """
import torch
from torch import nn

class ModelNew(nn.Module):
    def __init__(self, features, epsilon):
        super().__init__()
        self.epsilon = epsilon
        self.weight = nn.Parameter(torch.ones(features))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.epsilon) * self.weight
"""
FILES = {
    "path/to/problem.py": PROBLEM,
    "my_problem.py": PROBLEM,
    "problems/mine.py": PROBLEM,
    "candidates/mine/first.py": RIGHT,
    "KernelBench/level1/1_Sum.py": PROBLEM,
    "runs/theirs/level_1_problem_1_sample_0_kernel.py": RIGHT,
    "reply.txt": fake_reply(RIGHT),
}
"""What a reader of the README has."""


def write(folder, files):
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


def called(words, folder, server=None, **environment):
    """The finished command, by the sources of this checkout."""
    server_at = {"OPENAI_BASE_URL": server.base_url, "OPENAI_API_KEY": "none"} if server else {}
    return run_with(folder, *words[1:], **server_at | environment)


def command(words):
    # -P: a user's folder named `problems` is no package of ours.
    return [sys.executable, "-P", "-m", "kernelwright", *words[1:]]


def address_of(words, folder):
    """What a live view says when it is up; it is ended then."""
    process = subprocess.Popen(
        command([*words, "--port", "0"]), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        return process.stdout.readline()
    finally:
        process.terminate()
        process.wait()


def python_files(page):
    """The Python of a page by the file's name that stands before it: `name.py`, a colon, the block."""
    found = re.findall(r"`([\w/]+\.py)`:\n\n```python\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return dict(found)
