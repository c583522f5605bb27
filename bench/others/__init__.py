"""Kernels that others released, judged here and by KernelBench's own evaluator, beside what they claim.

`python -m bench others PATH [options]` judges; PATH is one of

- `h100.json` of CUDA-L1's `optimized_cuda_code`: references, kernels and claims;
- a checkout of KernelAgent's artifacts (`L1`, `L2`, `L3`);
- a checkout of robust-kbench: its highlighted kernels, and the tasks that they are for.

`--draw N --seed S` takes N of them. Each is judged at effort `search` with accuracy `default`, and once more with
`kernelbench` unless the first verdict shows that it meets that too; `--accuracy` names others, `--effort` another
effort, `--names A,B` some kernels. `--tree TREE`, a checkout of KernelBench, adds its evaluator, a process each;
`--present` takes references from there in place of the released ones. Builds run side by side.

A line of JSON a judging goes to `others.jsonl` in the folder that `KERNELWRIGHT_OUT` names, or in `runs`; what is there
is not judged again. `KERNELWRIGHT_SECONDS` ends the run in time. Of a release only names, digests and claims are kept.

`python -m bench others keep FILE...` adds such files to `bench/records/others.jsonl.gz` and draws `docs/others.md`;
without a file it only draws.
"""

from bench.measuring import Report


def run(*words: str) -> Report:
    """Kernels that others released, judged here and by KernelBench's evaluator; ten seconds a kernel and judging."""
    if words[:1] == ("keep",):
        from bench.others.page import keep

        return keep(words[1:])
    from bench.others.judging import judge_released

    return judge_released(words)
