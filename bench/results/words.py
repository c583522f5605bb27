"""The sentences of docs/results.md that stand whatever the numbers are."""

HEAD = """\
# Results: a model's kernels for KernelBench

Answers of a language model to the prompts as they are rendered, for problems of a benchmark that others wrote, judged
as any kernel is. Which problems was fixed by a rule before any answer was asked for: {rule}. Answers are by {model};
judged on {device}.

Each question was a conversation of its own, without tools. The answering side saw one task file: role, contract, how
CUDA is built, an example for another problem, reference, form of the reply, hardware and limits, advice by pattern,
snippets, and the step asked for. It saw no judge, no device, and of other answers only the one to repair or improve.
A [full prompt](results-prompt.txt), for a problem of our own catalog, shows all sections. Temperature and length were
the model's own defaults.

A speedup is the median ratio of times against the fastest baseline at equal accuracy (strict eager, eager at default
precision, `torch.compile`); "of any baseline" counts less accurate ones too. A failure stays in every denominator. What
is faster than any algorithm could be, or was refused by a later judge, is a failure: [metrics](metrics.md). Weak
problems, whose result hardly depends on the input, are shown and not ranked.

`make results` draws this page and its pictures from the folder `results`; only the sentences on factors above 10 are
typed. The table counts ranked problems:

- "judged faster": the share of all problems whose kernel the judge calls `faster`;
- "at the wall": problems whose fastest baseline runs at 97 % of a copy's speed or more, whatever was answered;
- "median" and "geometric mean of the right": over right kernels, whose number is under "right". A speedup above 1 that
  is too noisy or unconfirmed counts as 1;
- "failures as 1": the geometric mean over all problems; "failures and losses as 1": with slower kernels as 1 too;
- fast_1, fast_2: the share of all problems with a right kernel more than 1 or 2 times as fast;
- "of the roofline": the [roofline](floor.md)'s time over the kernel's, as a geometric mean. A kernel that needs fewer
  operations than the reference can be below that time; such are counted apart;
- "of a copy": the same for a copy of as many bytes as the problem has to move."""
ROUNDS = """\
A round is the first answer to each problem, the second, and so on:"""
HOW_MEASURED = """\
How each was measured; "samples" are paired samples in so many pairs of processes, "judge" is the judge version, or in
older records the start of a digest:"""
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

Under "answers" stands what came of each: the speedup of its first verdict, or where it failed. The speedup is that of
the best, by the verdict that counts, "judged" that verdict's word; "again" is that of
[a later judge](#judged-a-second-time). Where nothing is right PyTorch's times and the roofline are those of a brief
look before the first answer. Tokens are those of prompts and answers together, as the provider counts them, else
estimated from their lengths. The kernels lie in `results/kernels`, a folder a dtype.""",
    "above": """\
## Factors above 10

Where each comes from:""",
    "tags": """\
## Tags

Rules read each kept kernel's source; a rule can miss what is written in an unusual way, and none changes a verdict.

- emulated fp32: products of fp16, TF32 or bf16 pieces on tensor cores (`fp16x3`: two pieces an operand, three
  products), within the error bound of `ieee`; cuBLAS and cuDNN compute in fp32 then;
- other algorithm: below the roofline's time, with fewer operations than the reference;
- spin barrier: a block waits for what another block stores, so all must be resident at once;
- device globals: state of its own on the device, so two streams cannot run it at once;
- fixed multiprocessors: written for 132 of them;
- no shape check: other shapes than the problem's give wrong results or faults, without an error;
- no device guard: launches on the current device, whatever device the inputs are on.""",
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
