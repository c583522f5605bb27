"""Run the command line as a process of its own, without paying for the import of torch each time.

A server per test process imports torch and kernelwright once and forks for each command. The forked process runs the
real `kernelwright.cli.main` under its own arguments, environment, folder and output files. Tests on how a command
starts, or that stop one under way, start `python -m kernelwright` themselves.
"""

import contextlib
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
MESSAGE_BYTES = 2**20


def clean_environment(**changes):
    """This process's environment without keys and addresses of model providers."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
    return {name: value for name, value in kept.items() if not name.endswith("_API_KEY")} | changes


def run_with(folder, *words, timeout=300, **environment):
    """Run `kernelwright WORDS` in a folder, without keys of providers; return the finished process."""
    words, env = [str(word) for word in words], clean_environment(**environment)
    if _at_start(env) != _at_start(os.environ):
        # -P: a user's folder named `problems` is no package of ours.
        command = [sys.executable, "-P", "-m", "kernelwright", *words]
        return subprocess.run(
            command, cwd=folder, env=env, capture_output=True, text=True, timeout=timeout, check=False
        )
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        request = {"words": words, "cwd": str(folder), "env": env}
        code = _server().run(request, out.fileno(), err.fileno(), timeout)
        texts = [_text(file) for file in (out, err)]
    return subprocess.CompletedProcess(["kernelwright", *words], code, *texts)


def _at_start(env):
    """What an interpreter reads of the environment as it starts: a command that changes it gets one of its own."""
    found = {name: value for name, value in env.items() if name.startswith(("PYTHON", "LD_", "OMP_"))}
    return {name: value for name, value in found.items() if (name, value) != ("PYTHONPATH", str(ROOT))}


def _text(file):
    file.seek(0)
    return file.read().decode()


class _Server:
    """The process that forks, started by the process that asks it."""

    def __init__(self):
        self.owner = os.getpid()
        self._folder = tempfile.TemporaryDirectory(prefix="tests-commands-")
        self._path = str(Path(self._folder.name) / "socket")
        # It ends with its standard input, so with this process however that ends.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tests.support.commands", self._path],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        if self._process.stdout.readline() != b"ready\n":
            raise AssertionError("the server of commands did not start; its error stands above")

    def run(self, request, out, err, timeout_s):
        """The exit code of a command; negative for a signal."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel:
            channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MESSAGE_BYTES)
            channel.connect(self._path)
            socket.send_fds(channel, [json.dumps(request).encode()], [out, err])
            pid = int(channel.recv(64))
            channel.settimeout(timeout_s)
            try:
                return int(channel.recv(64))
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired(request["words"], timeout_s) from None


_servers = []


def _server():
    if not _servers or _servers[-1].owner != os.getpid():
        _servers[:] = [_Server()]
    return _servers[-1]


def _serve(path):
    """Fork for each request until standard input ends."""
    import torch  # noqa: F401 - what every fork would wait for

    import kernelwright.cli
    import kernelwright.evals.runs
    import kernelwright.sandbox.judge.judging  # noqa: F401

    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(path)
    listener.listen(64)
    print("ready", flush=True)
    running = {}
    while True:
        ready, _, _ = select.select([0, listener, *running], [], [])
        if 0 in ready:
            return
        for handle in [one for one in ready if one in running]:
            pid, channel = running.pop(handle)
            os.close(handle)
            with contextlib.suppress(OSError):  # who asked may have given up
                channel.send(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())
            channel.close()
        if listener in ready:
            channel, _ = listener.accept()
            data, fds, _, _ = socket.recv_fds(channel, MESSAGE_BYTES, 2)
            pid = os.fork()
            if pid == 0:
                listener.close()
                channel.close()
                for handle in running:
                    os.close(handle)
                _become(json.loads(data), *fds)
            for fd in fds:
                os.close(fd)
            channel.send(str(pid).encode())
            running[os.pidfd_open(pid)] = pid, channel


def _become(request, out, err):
    import atexit
    import threading
    import traceback

    code = 70
    try:
        nothing = os.open(os.devnull, os.O_RDONLY)
        for fd, target in ((nothing, 0), (out, 1), (err, 2)):
            os.dup2(fd, target)
            os.close(fd)
        sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
        os.environ.clear()
        os.environ.update(request["env"])
        os.chdir(request["cwd"])
        tempfile.tempdir = None
        sys.modules["__main__"] = importlib.import_module("kernelwright.__main__")  # by which a command names itself
        sys.argv = [str(ROOT / "kernelwright" / "__main__.py"), *request["words"]]
        code = _main()
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        with contextlib.suppress(Exception):
            sys.stderr.flush()
        os._exit(code)


def _main():
    from kernelwright.cli import main

    try:
        main()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    _serve(sys.argv[1])
