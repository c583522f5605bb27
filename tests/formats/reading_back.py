"""Files of other benchmarks' results, read as their own tools would: what `export` wrote can be held against it."""

import json

from kernelwright.evals.formats.kernelbench import EvalResult, TimeStats


def read_eval_results(path):
    """KernelBench's results, by number of the problem."""
    found = json.loads(path.read_text())
    return {key: [EvalResult.model_validate(one) for one in results] for key, results in found.items()}


def read_baselines(path):
    """KernelBench's baseline times, by level and file of the problem."""
    return {
        level: {title: TimeStats.model_validate(time) for title, time in problems.items()}
        for level, problems in json.loads(path.read_text()).items()
    }


def read_rows(path):
    """The rows of a data set in JSON lines."""
    return [json.loads(line) for line in path.read_text().splitlines()]
