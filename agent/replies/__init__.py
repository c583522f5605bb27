"""From a messy reply to the candidate's source. Pure text to text; it runs nothing and never raises."""

from kernelwright.agent.replies.extracting import Extraction, NotExtracted, extract

__all__ = ["Extraction", "NotExtracted", "extract"]
