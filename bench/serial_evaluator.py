"""One candidate in a fresh process, as evaluators of the usual kind do it: import torch, build, compare, time.

`python serial_evaluator.py PROBLEM CANDIDATE DEVICE` prints a line of JSON with `correct` and `speedup`. Seed 42, five
trials, absolute and relative tolerance 1e-2, a hundred timed calls of each side on the same inputs.
"""

import json
import runpy
import sys
import time

import torch

SEED, TRIALS, WARM_UP, TIMED, TOLERANCE = 42, 5, 3, 100, 1e-2


def main(problem: str, candidate: str, device: str) -> None:
    """Evaluate and print."""
    reference, proposed = runpy.run_path(problem), runpy.run_path(candidate)
    torch.manual_seed(SEED)
    model = reference["Model"](*reference["get_init_inputs"]()).to(device)
    new = proposed["ModelNew"](*reference["get_init_inputs"]()).to(device)
    correct, speedup = True, None
    with torch.no_grad():
        for trial in range(TRIALS):
            torch.manual_seed(SEED + trial)
            inputs = [value.to(device) for value in reference["get_inputs"]()]
            correct = correct and torch.allclose(model(*inputs), new(*inputs), atol=TOLERANCE, rtol=TOLERANCE)
        if correct:
            speedup = mean_ms(model, inputs, device) / mean_ms(new, inputs, device)
    print(json.dumps({"correct": correct, "speedup": speedup}))


def mean_ms(model: torch.nn.Module, inputs: list[torch.Tensor], device: str) -> float:
    """By the device's events where there is one."""
    for _ in range(WARM_UP):
        model(*inputs)
    total = 0.0
    for _ in range(TIMED):
        if device == "cpu":
            start = time.perf_counter()
            model(*inputs)
            total += 1e3 * (time.perf_counter() - start)
            continue
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        model(*inputs)
        end.record()
        torch.cuda.synchronize()
        total += begin.elapsed_time(end)
    return total / TIMED


if __name__ == "__main__":
    main(*sys.argv[1:])
