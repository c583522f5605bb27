"""The hostile candidates, as data: what each does, at which stage it must fail, and what the verdict must say.

Each is judged for the problem `PROBLEM`, on every setting. After each, nothing of it may be left (`surroundings.py`).
"""

import json
import textwrap
from typing import NamedTuple

from kernelwright.problems import Problem
from kernelwright.sandbox.verdict.verdicts import Candidate
from tests.hostile.snooping import SNOOPING

PROBLEM = Problem(
    name="doubled",
    title="Twice the input",
    family="test",
    size="cpu",
    source="""
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return x * 2

def get_inputs():
    return [torch.randn(8, 16)]

def get_init_inputs():
    return []
""",
)
HONEST = "return x * 2"
MODEL = """
import ctypes, json, mmap, os, signal, socket, stat, sys, threading, time
import torch
from torch.utils.cpp_extension import load_inline

AROUND = json.loads({around!r})

{top}

class ModelNew(torch.nn.Module):
    def forward(self, x):
{forward}
"""


class Attack(NamedTuple):
    """One line of docs/trust.md, with the candidate that proves it."""

    line: str
    stage: str
    words: str
    """What the reason holds. Several, divided by `|`: any of them will do."""
    forward: str = HONEST
    top: str = ""

    def candidate(self, around: dict[str, object]) -> Candidate:
        """The source; `AROUND` holds what the test has planted."""
        forward = textwrap.indent(textwrap.dedent(self.forward).strip(), 8 * " ")
        source = MODEL.format(around=json.dumps(around), top=textwrap.dedent(self.top), forward=forward)
        return Candidate(source=source)


FORK_TWICE = """
def daemon():
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        os.closerange(0, 256)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
    time.sleep(0.05)
"""
COMPILED = """
PATH = load_inline(name="hostile", cpp_sources=[SOURCE], no_implicit_headers=True, is_python_module=False)
"""

ATTACKS = {
    "fork_bomb": Attack(
        "a fork bomb",
        "run",
        "no answer within|memory",
        """
        while True:
            try: os.fork()
            except OSError: pass
        """,
    ),
    "memory_bomb": Attack(
        "a memory bomb",
        "run",
        "memory|Memory",
        """
        held = []
        while True: held.append(b"x" * 2**25)
        """,
    ),
    "shared_memory_bomb": Attack(
        "a memory bomb of shared pages",
        "run",
        "memory",
        """
        held = []
        while True:
            held.append(mmap.mmap(-1, 2**25))
            held[-1].write(b"x" * 2**25)
        """,
    ),
    "nameless_memory_bomb": Attack(
        "a memory bomb of files in memory",
        "run",
        "memory",
        """
        while True: os.write(os.memfd_create("bomb"), b"x" * 2**24)
        """,
    ),
    "output_flood": Attack(
        "a gigabyte of output",
        "run",
        "all of it was written",
        """
        for _ in range(2**10): os.write(1, b"x" * 2**20)
        raise RuntimeError("all of it was written")
        """,
    ),
    "disk_fill": Attack(
        "a full disk: many files",
        "run",
        "folder grew above the limit",
        """
        for turn in range(10**6):
            with open(f"{os.environ['TMPDIR']}/{turn}", "wb") as file: file.write(bytes(2**22))
            time.sleep(0.01)
        """,
    ),
    "nameless_disk_fill": Attack(
        "a full disk: files without a name",
        "run",
        "folder grew above the limit",
        """
        held = []
        for turn in range(10**6):
            held.append(open(f"{os.environ['TMPDIR']}/x", "wb"))
            os.unlink(f"{os.environ['TMPDIR']}/x")
            held[-1].write(bytes(2**22))
            held[-1].flush()
            time.sleep(0.01)
        """,
    ),
    "huge_file": Attack(
        "one huge file",
        "run",
        "File too large|SIGXFSZ",
        """
        with open(f"{os.environ['TMPDIR']}/x", "wb") as file: os.truncate(file.fileno(), 2**40)
        """,
    ),
    "hang": Attack(
        "a hang that ignores SIGTERM",
        "run",
        "no answer within",
        """
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP): signal.signal(number, signal.SIG_IGN)
        while True: pass
        """,
    ),
    "sigstop": Attack("stopping itself", "run", "no answer within", "os.kill(os.getpid(), signal.SIGSTOP)"),
    "daemon": Attack("a daemon that forks twice", "run", "processes of its own", HONEST, FORK_TWICE + "daemon()\n"),
    "kill_everybody": Attack(
        "killing the parent, its process group, the judge, the zygote and everybody",
        "run",
        "killed by SIGKILL",
        """
        daemon()
        parent = os.getppid() or 1
        for target in (parent, -parent, AROUND["judge"], -AROUND["judge"], *AROUND["zygotes"], -1):
            for number in (signal.SIGSTOP, signal.SIGKILL):
                try: os.kill(target, number)
                except OSError: pass
        time.sleep(0.2)
        os.killpg(0, signal.SIGKILL)
        """,
        FORK_TWICE,
    ),
    "odd_signal": Attack("dying of a real-time signal", "run", "signal 40", "os.kill(os.getpid(), 40)"),
    "segfault": Attack(
        "a segmentation fault in C++",
        "run",
        "SIGSEGV",
        "ctypes.CDLL(PATH).crash()",
        "SOURCE = 'extern \"C\" void crash() { *(volatile int*)0 = 1; }'" + COMPILED,
    ),
    "exit_0": Attack("`os._exit(0)`", "run", "exit code 0", "os._exit(0)"),
    "sys_exit": Attack("`sys.exit` in forward", "run", "SystemExit", "sys.exit(0)"),
    "every_descriptor": Attack(
        "writing to every open descriptor",
        "run",
        "the child|changed input",
        """
        for _ in range(3):
            for fd in range(256):
                try: os.write(fd, b'{"tree": {"t": 0}, "tensors": []}')
                except OSError: pass
        return x * 2
        """,
    ),
    "constructor": Attack(
        "a constructor attribute that exits when the library is loaded",
        "build",
        "exit code 0",
        HONEST,
        '''SOURCE = """extern "C" void _exit(int);
        __attribute__((constructor)) static void leave() { _exit(0); }"""'''
        + COMPILED,
    ),
    "include": Attack(
        "`#include` of a file outside",
        "build",
        "No such file|Permission denied",
        HONEST,
        "SOURCE = '#include \"' + AROUND['key'] + '\"\\n'" + COMPILED,
    ),
    "mess": Attack(
        "a work folder that is hard to remove",
        "run",
        "folder|left a mess",
        """
        os.chdir(os.environ["TMPDIR"])
        socket.socket(socket.AF_UNIX).bind("socket")
        os.mkfifo("fifo")
        os.symlink(AROUND["outside"], "link")
        open("name\\udcff\\n", "w").close()
        for _ in range(3000):
            os.mkdir("deep")
            os.chdir("deep")
        os.mkdir("closed", 0)
        raise RuntimeError("left a mess")
        """,
    ),
    "snooping": Attack("(all that is refused: see below)", "run", "REPORT", SNOOPING.call, SNOOPING.source),
}
