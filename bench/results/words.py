"""The sentences of docs/results.md that stand whatever the numbers are."""

HEAD = """\
# Results: a model's kernels for KernelBench

Problems that we did not choose, answers of a language model to the prompts as they are rendered, judged as any kernel
is. Chosen before any of them was looked at: {rule}. Each was answered from its task file alone, without tools and
without the judge, by {model}; judged on {device}. A speedup is against the fastest of all baselines that were measured
(strict eager, eager as PyTorch ships, `torch.compile`), a failure stays in every denominator, and what is faster than
any algorithm could be, or was refused when it was judged again, counts as a failure: [metrics](metrics.md).

`make results` draws this page and its pictures from the folder `results`; nothing here was typed. The share under a
baseline's name is fast_1 against it. A kernel may take less than the floor (over 100 % of it) by needing fewer
operations than the reference as it is written; what takes less than any algorithm could does not count:
[the floor](floor.md)."""
UNDER_WAY = """\
**This is under way.** Until a search is at its end what counts is what it measured itself, with the effort `search`;
then its best is judged afresh in full."""

SECTIONS = {
    "problems": """\
## Every problem

Under "answers" stands what came of each: its speedup as the search knew it, or where it failed; tokens are those of
prompts and answers together, by the provider where it tells them, else estimated from their lengths. The speedup is
that of the best, judged afresh in full at the end; "again" is that of [a later judge](#judged-a-second-time). Where
nothing is right PyTorch's times and the floor are those of a brief look before the first answer. The kernels lie
in `results/kernels`, a folder a dtype.""",
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
repairs belong to it. The gain is that of right improvements over their parents.""",
    "commands": """\
## Judge one again""",
}
ROLES = """\
By what was asked for; a repair starts from a failure, an improvement from a right kernel:"""
JUDGED_TWICE = """\
## Judged a second time

By another process with other seeds, against the problems of a fresh checkout and the kernels as they lie here
(`python -m bench.results again KernelBench`). Intervals meet if they have a point in common."""
MADE = """\
## How it was made

`results/records.jsonl.gz` has a line a problem: every answer, candidate and verdict with all raw samples, without the
benchmark's texts; `results/index.json` is derived from it, and `results/again.jsonl.gz` holds the second judgings. How
to make a run like this one is in `results/README.md`."""
LIMITS = """\
## What this does not show

- One model, one kind of card, and problems whose numbers end in 5: no ranking of models, and no average of the
  benchmark.
- The model may have seen the benchmark, or kernels for it, when it was trained; nobody can tell from here.
- Four answers a problem: neither what more of them would reach, nor what the same number of unrelated drafts would.
- The sizes are the benchmark's own. A kernel may be slower at others, or wrong where it was never asked.
- Figures that others publish stand here only where problem, size, dtype and baseline are the same; of the chosen
  problems none is known to be so."""
