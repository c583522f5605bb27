"""From a messy reply to the candidate's source. Pure text to text; it runs nothing and never raises."""

from agent.extraction.extracting import Extracted, NotExtracted, extract
from agent.extraction.languages import language_of

__all__ = ["Extracted", "NotExtracted", "extract", "language_of"]
