"""A worker's process that breaks off in its first answers, and then answers as the real one does: `KERNELWRIGHT_FAULT`.

`python -m tests.sandbox.pool.faulty THREADS ORDER`; FAULT is NAME:COUNT:FOLDER, for COUNT processes one after
the other. `KERNELWRIGHT_ANSWER` is what the real one would say, so that dozens of these import nothing of ours.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

ANSWER = json.loads(os.environ.get("KERNELWRIGHT_ANSWER", "{}"))
SAID = json.dumps({"id": 0, "answer": ANSWER}).encode()


HALF = SAID[: len(SAID) // 2]


def killed_in_a_line():
    os.write(1, HALF)
    os.kill(os.getpid(), signal.SIGKILL)


def ended_with_its_output_held():
    """A child that outlives it holds the pipe, so that it has no end."""
    if os.fork() == 0:
        wait()
    os.kill(os.getpid(), signal.SIGKILL)


def ended_with_its_input_full():
    """It has read nothing of a question that fills the pipe."""
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)


def wait():
    time.sleep(60)
    os._exit(1)


FAULTS = {
    "killed_in_a_line": killed_in_a_line,
    "half_a_line": lambda: os.write(1, HALF),
    "half_a_line_and_another": lambda: os.write(1, HALF + SAID + b"\n"),
    "nonsense": lambda: os.write(1, b"Segmentation fault\n"),
    "nonsense_that_is_json": lambda: os.write(1, b"[1, 2]\n"),
    "nonsense_that_is_deep": lambda: os.write(1, b"[" * 100_000 + b"\n"),
    "no_text": lambda: os.write(1, b"\xff\xfe\n"),
    "an_answer_that_is_none": lambda: os.write(1, b'{"id": 0, "answer": {"verdict": 7}}\n'),
    "output_closed": lambda: os.close(1),
    "input_closed": lambda: os.close(0),
    "ended_with_its_output_held": ended_with_its_output_held,
    "ended_with_its_input_full": ended_with_its_input_full,
}
DEAF = {"input_closed", "ended_with_its_input_full"}
"""These do not wait for a question."""


def main():
    name, count, folder = os.environ["KERNELWRIGHT_FAULT"].split(":")
    begun = len(list(Path(folder).iterdir()))
    if begun >= int(count):
        answer_all()
        return
    (Path(folder) / str(begun)).touch()
    if name not in DEAF:
        sys.stdin.readline()
    FAULTS[name]()
    wait()


def answer_all():
    """A build gives a product, all else a verdict."""
    for line in sys.stdin:
        asked = json.loads(line)
        if "question" in asked:
            built = asked["question"]["stage"] == "build"
            print(json.dumps({"id": asked["id"], "answer": {"product": ""} if built else ANSWER}), flush=True)


if __name__ == "__main__":
    main()
