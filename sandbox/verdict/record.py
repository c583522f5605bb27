"""The base of every record, as the rooms of the sandbox and those above it import it."""

from kernelwright.problems.record.base import Record

__all__ = ["Record"]
