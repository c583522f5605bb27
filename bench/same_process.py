"""An evaluator of the usual kind, to be compared with: the candidate runs in the process that decides.

`main(CORPUS, FD)` reads a list of `{"problem": source, "candidate": source}` and writes for each a line of JSON with
`correct` and `speedup`. Seed 42, five trials, absolute and relative tolerance 1e-2, weights copied by order, times by
the clock of the process: what most public harnesses do. Each candidate gets a forked process of its own, so that one
that crashes does not end the rest. It stands in one file, since it runs in a jail that shows nothing else of ours.
"""

import contextlib
import json
import os
import signal
import sys
import time

import torch

SEED, TRIALS, TIMED, TOLERANCE, LIMIT_S = 42, 5, 20, 1e-2, 20


def main(corpus: str, fd: int) -> None:
    """One candidate after the other, each in a fork."""
    with open(corpus, encoding="utf-8") as file:
        pairs = json.load(file)
    for number, pair in enumerate(pairs):
        verdict = forked(pair["problem"], pair["candidate"], number, fd)
        os.write(fd, json.dumps(verdict).encode() + b"\n")


def forked(problem: str, candidate: str, number: int, private: int) -> dict[str, object]:
    """What the forked process wrote, without the descriptor `private`; incorrect where it wrote nothing in time."""
    told, result = os.pipe()
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
    line = first_line(told, time.monotonic() + LIMIT_S)
    with contextlib.suppress(OSError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(told)
    try:
        verdict = json.loads(line)
        return {"correct": verdict["correct"] is True, "speedup": verdict.get("speedup")}
    except (ValueError, KeyError, TypeError, RecursionError):
        return {"correct": False, "speedup": None}


def first_line(fd: int, limit: float) -> bytes:
    """Up to the first end of line, the end of the file or the limit."""
    import select

    text = b""
    while b"\n" not in text:
        ready, _, _ = select.select([fd], [], [], max(0.0, limit - time.monotonic()))
        more = os.read(fd, 65536) if ready else b""
        if not more:
            break
        text += more
    return text.partition(b"\n")[0]


def evaluate(problem: str, candidate: str, number: int) -> dict[str, object]:
    """Correctness over the trials, then the ratio of mean times."""
    reference, proposed = loaded(problem, f"reference_{number}"), loaded(candidate, f"candidate_{number}")
    torch.manual_seed(SEED)
    arguments = reference["get_init_inputs"]()
    torch.manual_seed(SEED)
    model = reference["Model"](*arguments)
    torch.manual_seed(SEED)
    new = proposed["ModelNew"](*arguments)
    with torch.no_grad():
        for mine, theirs in zip(new.state_dict().values(), model.state_dict().values(), strict=False):
            mine.copy_(theirs.view(mine.shape))
        for trial in range(TRIALS):
            torch.manual_seed(SEED + trial)
            inputs = reference["get_inputs"]()
            if not close(model(*inputs), new(*inputs)):
                return {"correct": False}
        return {"correct": True, "speedup": mean_s(model, inputs) / mean_s(new, inputs)}


def loaded(source: str, name: str) -> dict[str, object]:
    """Run a source as a module with a file, as `load_inline` wants it."""
    path = f"{os.environ['TMPDIR']}/{name}.py"
    with open(path, "w", encoding="utf-8") as file:
        file.write(source)
    module = type(sys)(name)
    module.__file__ = path
    sys.modules[name] = module
    exec(compile(source, path, "exec"), module.__dict__)
    return module.__dict__


def close(want: object, got: object) -> bool:
    """Tensors by `allclose`, nests element by element."""
    if isinstance(want, torch.Tensor):
        return want.shape == got.shape and torch.allclose(want.float(), got.float(), atol=TOLERANCE, rtol=TOLERANCE)
    if isinstance(want, dict):
        return all(close(want[key], got[key]) for key in want)
    if isinstance(want, list | tuple):
        return all(close(one, other) for one, other in zip(want, got, strict=False))
    return want == got


def mean_s(model: object, inputs: list[object]) -> float:
    """The mean time of a call on the same inputs."""
    start = time.perf_counter()
    for _ in range(TIMED):
        model(*inputs)
    return (time.perf_counter() - start) / TIMED


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
