"""The deciding lines of a compiler's or Python's output first; the rest trimmed. Pure text to text."""

import re

from kernelwright.sandbox.machine.logs import escaped, one_line

KEPT_CHARACTERS = 3000
CONTEXT_LINES = 3
_ERROR = re.compile(
    r"(?:^|[\s:])(?:fatal )?error\b\s*:?|undefined reference to|undefined symbol|multiple definition of"
    r"|\bld: cannot find|ptxas (?:fatal|error)",
    re.I,
)
_NOISE = re.compile(
    r"^(?:\[\d+/\d+\]|FAILED:|ninja: |(?:/\S*/)?(?:g\+\+|c\+\+|nvcc|clang\+\+) )|ninja_options|^\s*$"
    r"|^Using .* as PyTorch extensions root|^Emitting ninja build file|^Building extension module|^Loading extension"
)
_DEEP_PATH = re.compile(r"(?:/[^\s:/'\"]+){3,}/(?=[^\s:/'\"]+)")


def names_an_error(log: str) -> bool:
    """Whether a compiler's or linker's error stands in it."""
    return any(_ERROR.search(line) and "Error building extension" not in line for line in _useful(log))


def build_reason(log: str) -> str:
    """The first error of a failed build, one line, without its folder; or the last line where no error is marked."""
    lines = _useful(log)
    for line in lines:
        if _ERROR.search(line) and "Error building extension" not in line:
            return one_line(line)
    return one_line(lines[-1]) if lines else "the build failed without a word"


def trim_build_log(log: str) -> str:
    """First error with the lines after it (the compiler shows the source there), then the log's end, without noise."""
    lines = _useful(log)
    first = next((i for i, line in enumerate(lines) if _ERROR.search(line) and "Error building" not in line), None)
    if first is None:
        return _cut("\n".join(lines))
    around = lines[first : first + 1 + CONTEXT_LINES]
    rest = [
        line
        for line in lines[first + 1 + CONTEXT_LINES :]
        if _ERROR.search(line) or line.lstrip().startswith(("|", "^"))
    ]
    return _cut("\n".join(around + rest))


def trim_traceback(log: str) -> str:
    """The frames of the candidate's own file and the exception; the frames of torch and of the worker are left out."""
    kept: list[str] = []
    own = False
    for line in escaped(log).splitlines():
        frame = re.match(r'\s+File "([^"]+)", line (\d+)', line)
        if frame:
            own = frame[1].endswith("candidate.py")
            if own:
                kept.append(line.replace(frame[1], "candidate.py"))
        elif not line.startswith(" ") or own:
            kept.append(line)
    return _cut("\n".join(kept))


def _useful(log: str) -> list[str]:
    """The lines that say something, each once, with folders shortened."""
    seen: set[str] = set()
    kept = []
    for raw in escaped(log).splitlines():
        line = _DEEP_PATH.sub("", raw.rstrip())
        if not _NOISE.search(raw) and line not in seen:
            seen.add(line)
            kept.append(line)
    return kept


def _cut(text: str) -> str:
    if len(text) <= KEPT_CHARACTERS:
        return text
    half = KEPT_CHARACTERS // 2
    return f"{text[: 2 * half - 600]}\n[... {len(text) - KEPT_CHARACTERS} characters left out ...]\n{text[-600:]}"
