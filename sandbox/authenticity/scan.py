"""Arguments of a judging before anything runs: problems, sources, and the candidate that a source is.

The scan refuses only what cannot run at all. It is not a defence: a text can hide what text rules look for. A text that
is the name of a file is a mistake of the caller; a text that may be anything is given as a `Candidate`.
"""

import os
from collections.abc import Iterable

from kernelwright.problems import Problem, load_problem
from kernelwright.problems.languages import LanguageName
from kernelwright.problems.languages.detect import language_of
from kernelwright.problems.source import Kind, bound_names, parse_module
from kernelwright.sandbox.logs import one_line
from kernelwright.sandbox.verdict.verdicts import Candidate


def candidate_of(source: str) -> Candidate:
    """Return the candidate of a source, with its language; the scan refuses text that is not Python."""
    language: LanguageName
    try:
        language = language_of(parse_module(source))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        language = "python"
    return Candidate(source=source, language=language)


SOURCE_BYTES = 1_000_000
NO_CALL: frozenset[Kind] = frozenset({"module"})
"""Kinds of names that cannot be called as a class is. A function can, and so can a name from a package."""


def refuse(source: str) -> str:
    """Return why this source cannot be judged, or an empty string."""
    if len(source.encode(errors="surrogatepass")) > SOURCE_BYTES:
        return f"the source is longer than {SOURCE_BYTES} bytes"
    try:
        tree = parse_module(source)
    except SyntaxError as error:
        return one_line(": ".join(filter(None, (f"line {error.lineno}", error.msg, (error.text or "").strip()))))
    except (ValueError, RecursionError, MemoryError) as error:
        return f"the source cannot be parsed: {error}"
    names = bound_names(tree, without=NO_CALL)
    if "ModelNew" in names:
        return ""
    return one_line(f"no class ModelNew is defined; the file defines {', '.join(names) or 'nothing'}")


GivenProblem = Problem | str | os.PathLike[str]
"""A problem; or its name, path or address."""
GivenSource = str | Candidate
"""The text of a candidate, or its record."""
Pair = tuple[GivenProblem, GivenSource]
LONGEST_SHOWN = 80


def checked_pairs(pairs: Iterable[Pair]) -> list[tuple[Problem | str, GivenSource]]:
    """The pairs with paths as text. Raises `ValueError`, which names the position of what is wrong."""
    return [_checked_pair(pair, f"pairs[{index}]") for index, pair in enumerate(listed(pairs, "pairs"))]


def _checked_pair(pair: object, what: str) -> tuple[Problem | str, GivenSource]:
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise ValueError(f"{what} is {shown(pair)}; give (problem, source)")
    problem, source = pair
    return checked_problem(problem, f"the problem of {what}"), checked_source(source, f"the source of {what}")


def checked_problems(problems: Iterable[GivenProblem]) -> list[Problem | str]:
    """The problems of a list. Raises `ValueError`."""
    return [checked_problem(one, f"problems[{index}]") for index, one in enumerate(listed(problems, "problems"))]


def listed(given: object, what: str) -> list[object]:
    """Check that this is a list and no single thing. Raises `ValueError`."""
    if isinstance(given, str | bytes | os.PathLike | Problem | Candidate) or not isinstance(given, Iterable):
        raise ValueError(f"{what} is {shown(given)}; give a list")
    return list(given)


def checked_problem(problem: object, what: str = "the problem") -> Problem | str:
    """A problem, or its name or path as text. Raises `ValueError`; nothing is read."""
    named = os.fspath(problem) if isinstance(problem, os.PathLike) else problem
    if not isinstance(named, str | Problem):
        raise ValueError(f"{what} is {shown(problem)}; give a catalog name, a path or a Problem")
    return named


def checked_source(source: object, what: str = "the source") -> GivenSource:
    """A candidate or its text. Raises `ValueError`, also for a path, and for text that is a file's name instead."""
    is_file = isinstance(source, str) and is_file_name(source) and os.path.isfile(source)  # noqa: PTH113
    if is_file or isinstance(source, os.PathLike):
        raise ValueError(f"{what} is {shown(source)}, the path of a file; give the text that is in it")
    if not isinstance(source, str | Candidate):
        raise ValueError(f"{what} is {shown(source)}; give the text of a candidate, or a Candidate")
    return source


def is_file_name(source: str) -> bool:
    """Return whether this is the name of a Python file, there or not, and no candidate's text."""
    return source.endswith(".py") and "\n" not in source and bool(refuse(source))


def problem_of(given: GivenProblem) -> Problem:
    """The problem itself. Raises `ValueError`, which is `ProblemError` where there is none of that name."""
    found = checked_problem(given)
    return found if isinstance(found, Problem) else load_problem(found)


def candidate_given(source: GivenSource) -> Candidate:
    """Return the candidate, in the language of its text unless it names one.

    Surrogates, which come of reading bytes leniently, cannot be sent; they are replaced, as where a file is read.
    """
    text = source if isinstance(source, str) else source.source
    found = candidate_of(text.encode(errors="replace").decode())
    if isinstance(source, Candidate) and "language" in source.model_fields_set:
        return found.model_copy(update={"language": source.language})
    return found


def shown(given: object) -> str:
    return one_line(repr(given), LONGEST_SHOWN)
