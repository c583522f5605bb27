"""The candidates in the recorded answers that ship."""

from kernelwright.agent.providers.recorded import read_session, session_folder
from kernelwright.agent.replies import Extraction, extract
from kernelwright.prompts import Target


def recorded_source(problem: str, target: Target, index: int = -1, dtype: str | None = None) -> str:
    """That of a story's entry, counted from 0; of the last one by default."""
    entry = read_session(problem, target, dtype=dtype).entries[index]
    found = extract((session_folder(problem, target, dtype=dtype) / entry.file).read_text(encoding="utf-8"))
    assert isinstance(found, Extraction), found
    return found.source
