"""From a messy reply to the candidate's source. Pure text to text; it runs nothing and never raises."""

from kernelwright.agent.replies.extracting import Extracted, NotExtracted, extract

__all__ = ["Extracted", "NotExtracted", "extract"]
