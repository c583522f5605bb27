"""The candidate of a source, and what cannot be judged, from the text alone.

The scan refuses only what cannot be run at all. It is no defence: what text rules find, text can hide.
"""

from kernelwright.problems.languages import LanguageName
from kernelwright.problems.languages.detect import language_of
from kernelwright.problems.source import Kind, bound_names, parse_module
from kernelwright.sandbox.logs import one_line
from kernelwright.sandbox.verdict.verdicts import Candidate


def candidate_of(source: str) -> Candidate:
    """The candidate of a source, with the language that it asks for; text that is no Python is left to the scan."""
    language: LanguageName
    try:
        language = language_of(parse_module(source))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        language = "python"
    return Candidate(source=source, language=language)


SOURCE_BYTES = 1_000_000
NO_CALL: frozenset[Kind] = frozenset({"module"})
"""What can not be called as a class is. A function can, and so may what is imported from a package of one's own."""


def refuse(source: str, entry: str = "ModelNew") -> str:
    """Why this source can not be judged, or an empty string."""
    if len(source.encode(errors="surrogatepass")) > SOURCE_BYTES:
        return f"the source is longer than {SOURCE_BYTES} bytes"
    try:
        tree = parse_module(source)
    except SyntaxError as error:
        return one_line(": ".join(filter(None, (f"line {error.lineno}", error.msg, (error.text or "").strip()))))
    except (ValueError, RecursionError, MemoryError) as error:
        return f"the source can not be parsed: {error}"
    names = bound_names(tree, without=NO_CALL)
    if entry in names:
        return ""
    return one_line(f"no class {entry} is defined; the file defines {', '.join(names) or 'nothing'}")
