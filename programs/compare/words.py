"""A comparison in words. Pure."""

import statistics

from kernelwright.programs.compare.comparison import Comparison, StageError
from kernelwright.sandbox.verdict.in_words import ratio_words


def words(found: Comparison) -> str:
    """What came of it, for a person: the answer first."""
    whole = found.whole
    samples, processes = len(whole.closest.candidate_ms), len(set(whole.closest.workers))
    kind = "forward and backward" if found.backward else "forward"
    lines = [f"{headline(found)}", ""]
    lines.append(f"{found.program}, {kind}, on {found.device}, {whole.threads} threads:")
    lines.append(f"  {'kernels':<28}{whole.candidate_ms:#9.3g} ms   ({samples} samples in {processes} processes)")
    for pairing in whole.pairings:
        ms = statistics.median(pairing.baseline_ms)
        lines.append(f"  {pairing.baseline:<28}{ms:#9.3g} ms   {ratio_words(pairing.speedup, *pairing.interval)}")
    if whole.placebo is not None:
        told = ratio_words(whole.placebo.speedup, *whole.placebo.interval)
        lines.append(f"  {'placebo: eager against eager':<28}{'':12}   {told}")
    lines += ["", *_shares(found), *map(error_words, found.errors)]
    lines += [f"{place}: the kernel was taken {count} times a sample" for place, count in found.taken.items()]
    for place, reasons in found.fallbacks.items():
        lines += [f"{place}: the module's own code {count} times a sample: {why}" for why, count in reasons.items()]
    return "\n".join([*lines, *found.notes])


def headline(found: Comparison) -> str:
    """`faster: 8.31 x [8.1, 8.5] against the fastest baseline, torch.compile default`; or why it is not."""
    whole = found.whole
    told = f"{ratio_words(whole.speedup, *whole.interval)} against the fastest baseline, {whole.closest.baseline}"
    if not found.right:
        return f"the whole is WRONG with the kernels by the judge's bound (and {told})"
    if whole.comparison == "faster":
        return f"the whole is faster: {told}"
    if whole.comparison == "too_noisy":
        return f"the machine is too noisy to say whether the whole is faster: {told}"
    return f"the whole is NOT faster ({whole.comparison}): {told}"


def _shares(found: Comparison) -> list[str]:
    return [
        f"{share.part} alone takes off {share.saved:.1%} of eager's time [{share.low:.1%}, {share.high:.1%}]"
        for share in found.shares
    ]


def error_words(error: StageError) -> str:
    """`tonal: off from float64 by 2.1e-07 of the largest value, its own code by 1.9e-07`."""
    truth = "float64" if error.exact else "its own result (float64 could not be had)"
    what = error.place or "the whole"
    said = f"{what}: off from {truth} by {error.kernel:.2g} of the largest value, the own code by {error.own:.2g}"
    return f"{said}; REFUSED: {error.wrong}" if error.wrong else said
