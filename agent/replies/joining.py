"""The module that a block stands for: by itself, or together with the blocks of the reply that it needs."""

from collections.abc import Sequence
from dataclasses import dataclass

from kernelwright.agent.replies.fences import Block
from kernelwright.agent.replies.modules import Broken, Module, Parser, dedented

MOST_PARTS = 8
"""Blocks that one module is put together from, and blocks that are looked at in search of a missing name."""


@dataclass(frozen=True, slots=True)
class Program:
    """What one block gives."""

    block: Block
    module: Module
    parts: int = 1
    """Blocks that the module was put together from."""
    dropped: str = ""
    """Prose that stood behind the code in an unclosed block."""
    closed: bool = True
    """Whether something shows where the model meant the code to end."""


def read_block(blocks: Sequence[Block], index: int, entry: str, parser: Parser) -> Program | Broken:
    """The module that block `index` stands for, joined with its continuation or with what it needs from above."""
    block = blocks[index]
    own = read_alone(block, parser)
    if isinstance(own, Broken):
        return _split_in_strings(blocks, index, entry, parser) or own
    if not own.module.defines(entry):
        return own
    own = _continued(blocks, index, own, parser)
    return _supplied(blocks, index, own, parser)


def read_alone(block: Block, parser: Parser) -> Program | Broken:
    """The block as a module; an unclosed one up to where prose begins."""
    found = parser.read(block.text)
    if isinstance(found, Broken) and _is_indented(block):
        found = parser.read(dedented(block.text))
    if block.closed:
        return found if isinstance(found, Broken) else Program(block, found)
    trimmed = parser.trimmed(block.text)
    if isinstance(trimmed, Broken):
        return trimmed
    module, dropped = trimmed
    return Program(block, module, dropped=dropped, closed=dropped.lstrip().startswith(("```", "~~~")))


def _is_indented(block: Block) -> bool:
    return block.text.lstrip("\n")[:1] in (" ", "\t")


def _continued(blocks: Sequence[Block], index: int, own: Program, parser: Parser) -> Program:
    """With the blocks behind it that begin indented: the rest of a class that was cut into several blocks."""
    source, last = own.module.source, index
    for follower in range(index + 1, min(len(blocks), index + MOST_PARTS)):
        if not _is_indented(blocks[follower]) or not blocks[follower].may_be_program:
            break
        source, last = f"{source.rstrip()}\n\n{blocks[follower].text}", follower
    joined = parser.read(source) if last > index else None
    if not isinstance(joined, Module):
        return own
    return Program(blocks[last], joined, last - index + 1, closed=blocks[last].closed)


def _split_in_strings(blocks: Sequence[Block], index: int, entry: str, parser: Parser) -> Program | None:
    """With the blocks directly above it: a module cut in the middle of a statement or of a string."""
    source = blocks[index].text
    if not blocks[index].closed:
        return None
    for parts in range(2, MOST_PARTS // 2 + 1):
        above = index - parts + 1
        if above < 0 or not blocks[above].closed or not blocks[above].may_be_program:
            return None
        source = f"{blocks[above].text.rstrip(chr(10))}\n{source}"
        joined = parser.read(source)
        if isinstance(joined, Module) and joined.defines(entry):
            return Program(blocks[index], joined, parts)
    return None


def _supplied(blocks: Sequence[Block], index: int, own: Program, parser: Parser) -> Program:
    """With the blocks above it that bind the names which it reads and does not bind."""
    missing = set(own.module.missing)
    chosen: list[str] = []
    for above in range(index - 1, max(-1, index - 1 - MOST_PARTS), -1):
        block = blocks[above]
        part = parser.read(block.text) if missing and block.closed and block.may_be_program else None
        if isinstance(part, Module) and missing & part.binds:
            missing = (missing - part.binds) | part.missing
            chosen.insert(0, part.source.rstrip())
    if not chosen:
        return own
    joined = parser.read("\n\n\n".join([*chosen, own.module.source]))
    if not isinstance(joined, Module):
        return own
    return Program(own.block, joined, own.parts + len(chosen), own.dropped, own.closed)
