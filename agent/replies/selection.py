"""One zone of a reply: which block is the candidate, which were passed over, and whether the zone was cut off."""

import re
from functools import cached_property

from kernelwright.agent.replies.blocks import marked_blocks, raw_blocks
from kernelwright.agent.replies.fences import Block
from kernelwright.agent.replies.joining import Program, read_alone, read_block
from kernelwright.agent.replies.modules import Broken, Parser, breaks_off
from kernelwright.agent.replies.strings import leaves_string_open
from kernelwright.agent.replies.zones import Zone

MOST_BLOCKS = 64
"""Blocks that name the entry class and are read, counted from the zone's end."""
_C_LANGUAGES = frozenset({"cuda", "cu", "cpp", "c++", "cc", "c"})
_CODE_LINE = re.compile(r"(?:^|\\n|\")(?:import |from \S+ import |class |def |@)", re.MULTILINE)
"""A line of Python, also one in a JSON string."""


class ZoneReader:
    """Reads one zone. What did not parse is kept in `failures`, the last block first."""

    def __init__(self, zone: Zone, entry: str, parser: Parser) -> None:
        self.zone = zone
        self.entry = entry
        self.parser = parser
        self.failures: list[tuple[Block, Broken]] = []

    @cached_property
    def blocks(self) -> list[Block]:
        """The blocks that marks set off, in the order of their ends."""
        return marked_blocks(self.zone.text, self.parser)

    @cached_property
    def named(self) -> list[int]:
        """Indices of the blocks that name the entry class."""
        return [index for index, block in enumerate(self.blocks) if self.entry in block.text]

    @cached_property
    def found(self) -> Program | None:
        """The last block that parses, defines the entry and imports torch; else the last that only lacks torch."""
        without_torch: Program | None = None
        for index in reversed(self.named[-MOST_BLOCKS:]):
            reading = self._accepted(self.blocks[index], read_block(self.blocks, index, self.entry, self.parser))
            if reading is not None and imports_torch(reading):
                return reading
            without_torch = without_torch or reading
        return without_torch or self._found_raw()

    def _found_raw(self) -> Program | None:
        if self.entry not in self.zone.text:
            return None
        for block in raw_blocks(self.zone.text, self.entry, self.blocks, self.parser):
            if (reading := self._accepted(block, read_alone(block, self.parser))) is not None:
                return reading
        return None

    def _accepted(self, block: Block, outcome: Program | Broken) -> Program | None:
        if isinstance(outcome, Program):
            return outcome if outcome.module.defines(self.entry) else None
        if block.may_be_program and (block.language not in _C_LANGUAGES or _CODE_LINE.search(block.text)):
            self.failures.append((block, outcome))
        return None

    def cut_off(self, truncated: bool) -> str | None:
        """How one sees that the final answer was not brought to its end; None where it was.

        `truncated`: the provider says that it stopped the reply in this zone.
        """
        return self._cut_by_provider() if truncated else self._cut_by_shape()

    def _cut_by_provider(self) -> str | None:
        found, tail = self.found, self._tail()
        if self.zone.name != "answer":
            return "The reply was cut off before an answer followed the reasoning."
        tail = next((block for block in self.blocks if not block.closed and leaves_string_open(block.text)), tail)
        if tail is not None and tail.may_be_program:
            return f"The reply was cut off in the {tail.origin} that begins on line {self._line(tail)} of the answer."
        if found is None and not any(block.closed for block, _ in self.failures):
            return f"The reply was cut off before a complete block that defines {self.entry}."
        if found is not None and not found.closed:
            return f"The reply was cut off in the {found.block.origin}, of which nothing shows the end."
        if found is not None and not imports_torch(found):
            return "The reply was cut off, and its last complete block, which does not import torch, is but a part."
        return None

    def _cut_by_shape(self) -> str | None:
        if self.zone.name != "answer" and not self.zone.unfinished:
            return None
        tail = self._tail()
        if tail is None and self.found is None:
            tail = next((block for block, _ in self.failures if not block.closed), None)
        if tail is None or not tail.may_be_program or not self._is_program(tail.text):
            return None
        error = self.parser.read(tail.text)
        if not isinstance(error, Broken) or not isinstance(read_alone(tail, self.parser), Broken):
            return None
        if not breaks_off(tail.text, error):
            return None
        return f"The last {tail.origin} breaks off in the middle (line {error.line}, {error.text!r})."

    def _is_program(self, text: str) -> bool:
        return self.entry in text or _CODE_LINE.search(text) is not None

    def _tail(self) -> Block | None:
        """The last block, if nothing closes it."""
        return self.blocks[-1] if self.blocks and not self.blocks[-1].closed else None

    def _line(self, block: Block) -> int:
        text = self.zone.text
        return text.count("\n", len(text) - len(text.lstrip("\n")), block.start) + 1


def imports_torch(reading: Program) -> bool:
    """Whether the module can stand by itself as far as its imports show."""
    return "torch" in reading.module.imports
