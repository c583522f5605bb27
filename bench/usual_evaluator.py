"""An evaluator of the usual kind, to be compared with: the candidate runs in the process that decides.

Seed 42, five trials, absolute and relative tolerance 1e-2, weights copied by order, times by the clock of the process
or the device's events: what most public evaluators do. It is one file, since it also runs in a jail that shows
nothing else of ours.

- `usual_evaluator.py PROBLEM CANDIDATE DEVICE` evaluates one and prints a line of JSON with `correct` and `speedup`.
- `usual_evaluator.py CORPUS FD` reads a list of `{"problem": source, "candidate": source}` and writes such a line for
  each, on the processor. Each has a forked process, so that one that crashes does not end the rest.
"""

import contextlib
import json
import os
import select
import signal
import sys
import tempfile
import time

import torch

SEED, TRIALS, TOLERANCE, LIMIT_S = 42, 5, 1e-2, 20
ALONE, IN_FORK = (3, 100), (0, 20)
"""Calls that are not timed, and calls that are."""


def evaluate_corpus(corpus: str, fd: int) -> None:
    """Evaluate one candidate after the other, each in a fork."""
    with open(corpus, encoding="utf-8") as file:
        pairs = json.load(file)
    for number, pair in enumerate(pairs):
        verdict = forked(pair["problem"], pair["candidate"], number, fd)
        os.write(fd, json.dumps(verdict).encode() + b"\n")


def forked(problem: str, candidate: str, number: int, private: int) -> dict[str, object]:
    """Return what the fork, without the descriptor `private`, wrote; incorrect where it wrote nothing in time."""
    output, result = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        os.close(private)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(1, 2)
        signal.alarm(LIMIT_S)
        try:
            verdict = evaluate(problem, candidate, number)
        except Exception as error:
            verdict = {"correct": False, "error": repr(error)[:200]}
        os.write(result, json.dumps(verdict).encode() + b"\n")
        os._exit(0)
    os.close(result)
    line = first_line(output, time.monotonic() + LIMIT_S)
    with contextlib.suppress(OSError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(output)
    try:
        verdict = json.loads(line)
        return {"correct": verdict["correct"] is True, "speedup": verdict.get("speedup")}
    except (ValueError, KeyError, TypeError, RecursionError):
        return {"correct": False, "speedup": None}


def first_line(fd: int, limit: float) -> bytes:
    """Read up to the first end of line, the end of the file or the limit."""
    text = b""
    while b"\n" not in text:
        ready, _, _ = select.select([fd], [], [], max(0.0, limit - time.monotonic()))
        more = os.read(fd, 65536) if ready else b""
        if not more:
            break
        text += more
    return text.partition(b"\n")[0]


def evaluate(
    problem: str, candidate: str, number: int = 0, device: str = "cpu", calls: tuple[int, int] = IN_FORK
) -> dict[str, object]:
    """Compare over the trials, then take the ratio of mean times."""
    reference, proposed = loaded(problem, f"reference_{number}"), loaded(candidate, f"candidate_{number}")
    torch.manual_seed(SEED)
    arguments = reference["get_init_inputs"]()
    torch.manual_seed(SEED)
    model = reference["Model"](*arguments).to(device)
    torch.manual_seed(SEED)
    new = proposed["ModelNew"](*arguments).to(device)
    with torch.no_grad():
        for mine, theirs in zip(new.state_dict().values(), model.state_dict().values(), strict=False):
            mine.copy_(theirs.view(mine.shape))
        for trial in range(TRIALS):
            torch.manual_seed(SEED + trial)
            inputs = [x.to(device) if isinstance(x, torch.Tensor) else x for x in reference["get_inputs"]()]
            if not close(model(*inputs), new(*inputs)):
                return {"correct": False, "speedup": None}
        means = [mean_ms(side, inputs, device, calls) for side in (model, new)]
        return {"correct": True, "speedup": means[0] / means[1]}


def loaded(source: str, name: str) -> dict[str, object]:
    """Run a source as a module with a file, as `load_inline` wants it."""
    path = f"{tempfile.gettempdir()}/{name}.py"
    with open(path, "w", encoding="utf-8") as file:
        file.write(source)
    module = type(sys)(name)
    module.__file__ = path
    sys.modules[name] = module
    exec(compile(source, path, "exec"), module.__dict__)
    return module.__dict__


def close(want: object, got: object) -> bool:
    """Compare tensors by `allclose`, nests element by element."""
    if isinstance(want, torch.Tensor):
        return want.shape == got.shape and torch.allclose(want.float(), got.float(), atol=TOLERANCE, rtol=TOLERANCE)
    if isinstance(want, dict):
        return all(close(want[key], got[key]) for key in want)
    if isinstance(want, list | tuple):
        return all(close(one, other) for one, other in zip(want, got, strict=False))
    return want == got


def mean_ms(model: object, inputs: list[object], device: str, calls: tuple[int, int]) -> float:
    """Return the mean time of a call on the same inputs, by the device's events where there is one."""
    warm_up, timed = calls
    for _ in range(warm_up):
        model(*inputs)
    if device == "cpu":
        start = time.perf_counter()
        for _ in range(timed):
            model(*inputs)
        return 1e3 * (time.perf_counter() - start) / timed
    total = 0.0
    for _ in range(timed):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        model(*inputs)
        end.record()
        torch.cuda.synchronize()
        total += begin.elapsed_time(end)
    return total / timed


if __name__ == "__main__":
    if len(sys.argv) == 3:
        evaluate_corpus(sys.argv[1], int(sys.argv[2]))
    else:
        texts = [open(path, encoding="utf-8").read() for path in sys.argv[1:3]]  # noqa: SIM115
        print(json.dumps(evaluate(*texts, device=sys.argv[3], calls=ALONE)))
