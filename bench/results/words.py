"""The sentences of docs/results.md that stand whatever the numbers are."""

HEAD = """\
# Results: a model's kernels for KernelBench

Answers of a language model to the prompts as they are rendered, for problems of a benchmark that others wrote, judged
as any kernel is. Which problems was fixed by a rule before any answer was asked for: {rule}. Each was answered from its
task file alone, without tools and without the judge, by {model}; judged on {device}. A speedup is against the fastest
of all baselines that were measured (strict eager, eager as PyTorch ships, `torch.compile`), a failure stays in every
denominator, and what is faster than any algorithm could be, or was refused when it was judged again, counts as a
failure: [metrics](metrics.md). Weak problems, whose result hardly depends on the input, are shown and not ranked.

`make results` draws this page and its pictures from the folder `results`; nothing here was typed. "Judged faster" is
the share of problems with a right kernel whose interval against the fastest baseline lies above 1; fast_1, the share
whose speedup is above 1, as KernelBench counts, against all baselines and each. [The floor](floor.md) is what the
device could do at most with the reference's operations; a kernel that needs fewer can be below it, and is not in the
mean."""
UNDER_WAY = """\
**This is under way.** Until a search is at its end what counts is what it measured itself, with the effort `search`;
then its best is judged afresh in full."""
OURS_TOO = {"level1/65": "conv_transpose2d_kernel3x7", "level1/75": "conv_transpose2d_grouped_asymmetric"}
"""Problems that are in our catalog too, at the same size."""
LIKE_OURS = """\
level1/65 and level1/75 are in our catalog too (`conv_transpose2d_kernel3x7` and `conv_transpose2d_grouped_asymmetric`),
and one line of advice in the prompts, on the residues of a transposed convolution's stride, comes from there. Without
these two the geometric mean is {without}. All references had been timed against themselves before
([KernelBench](kernelbench.md))."""

SECTIONS = {
    "levels": """\
By level:""",
    "problems": """\
## Every problem

Under "answers" stands what came of each: the speedup of its first verdict, or where it failed; tokens are those of
prompts and answers together, by the provider where it tells them, else estimated from their lengths. The speedup is
that of the best, by the verdict that counts, "judged" that verdict's word, "effort" with how much it was reached;
"again" is that of [a later judge](#judged-a-second-time). Where nothing is right PyTorch's times and the floor are
those of a brief look before the first answer. The kernels lie in `results/kernels`, a folder a dtype.""",
    "curves": """\
## How many are faster, and than what

fast_p is the share of all ranked problems that have a right kernel more than p times as fast as the baseline.""",
    "turns": """\
## What further answers gained

The best of the first answers to each problem, by the verdicts that count. Where nothing is right yet PyTorch goes on
being used, which counts as 1.""",
    "failures": """\
## What failed, and why

Each with its deciding line; logs and sources stand in the record.""",
    "ideas": """\
## Ideas by gain

A draft wins if it is right in the end, an improvement if it is at least 2 % faster than what it started from; its
repairs belong to it, and what waits for one is not counted yet. The gain is that of right improvements over their
parents.""",
    "commands": """\
## Judge one again""",
}
ENDED_EARLY = """\
Searches that ended before all their answers were asked for:"""
ROLES = """\
By what was asked for; a repair starts from a failure, an improvement from a right kernel:"""
JUDGED_TWICE = """\
## Judged a second time

By another process with other seeds, against the problems of a fresh checkout and the kernels as they lie here
(`python -m bench.results again KernelBench`). Intervals meet if they have a point in common."""
MADE = """\
## How it was made

`results/records.jsonl.gz` has a line a problem: every answer, candidate and verdict with all raw samples, without the
benchmark's texts; `results/index.json` is derived from it and from the second judgings, once there are any, in
`results/again.jsonl.gz`. How to make a run like this one is in `results/README.md`. The last column is the digest of
the judge's code that the verdicts name; those of a run that later processes went on with, which name none, are not on
record."""
LIMITS = """\
## What this does not show

- One model, one kind of card, and problems whose numbers end in 5: no ranking of models, and no average of the
  benchmark.
- The model may have seen the benchmark, or kernels for it, when it was trained; nobody can tell from here.
- At most four answers a problem: neither what more of them would reach, nor what as many unrelated drafts would.
- The sizes are the benchmark's own. A kernel may be slower at others, or wrong where it was never asked.
- Figures that others publish stand here only where problem, size, dtype and baseline are the same; of the chosen
  problems none is known to be so."""
