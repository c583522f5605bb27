"""A reply cut into zones: the answer, the thought before it, and the reasoning that a provider hands over apart."""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from kernelwright.agent.replies.blocks import marked_blocks
from kernelwright.agent.replies.fences import Block
from kernelwright.agent.replies.modules import Parser

LONGEST_REPLY = 1_000_000
"""Characters that are read, counted from the end: far above any honest reply, and a hostile one costs seconds."""
MOST_TAGS = 64
"""Closing tags that are looked at, counted from the end of the reply."""
LOOK_BACK = 20_000
"""Characters before a closing tag in which its opening one is looked for."""
_WORDS = "(?:think|thinking|thought|thoughts|reasoning|seed:think)"
_CLOSING = re.compile(rf"</{_WORDS}>|\[/THINK\]|◁/think▷|<\|END_THINKING\|>", re.IGNORECASE)
_OPENING = re.compile(rf"^[ \t]*(?:<{_WORDS}>|\[THINK\]|◁think▷|<\|START_THINKING\|>)", re.IGNORECASE | re.MULTILINE)
_CHANNEL = re.compile(
    r"(?:<\|start\|>\w*)?<\|channel\|>[ \t]*(\w+)[^<\n]*(?:<\|constrain\|>[^<\n]*)?<\|message\|>", re.IGNORECASE
)
_PLAIN_CHANNELS = re.compile(r"\A\s*analysis(?=[A-Z \n])([\s\S]*?)assistantfinal")
"""What is left of channels where a server drops the special tokens but not the words between them."""
_CONTROL = re.compile(
    r"<\|(?:start|end|message|channel|return|call|constrain|im_start|im_end|im_sep|eot_id|eom_id|endoftext|end_of_text"
    r"|begin_of_text|assistant|user|system)\|>|<\uff5c[^\uff5c\n]{1,40}\uff5c>|<(?:start|end)_of_turn>|(?:</s>|<eos>)\s*\Z"
)
_QUOTED = re.compile(r"^(?: {0,3}> ?)++", re.MULTILINE)
_QUOTED_RUN = re.compile(r"(?:^ {0,3}>[^\n]*\n?)++", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Zone:
    """A stretch of text that the model wrote with one purpose."""

    name: Literal["answer", "thought", "reasoning"]
    """`thought` is reasoning inside the reply itself, `reasoning` what came in a field of its own."""
    text: str
    unfinished: bool = False
    """Whether it is a thought that opens and never closes."""


def read_zones(reply: str, reasoning: str, parser: Parser) -> tuple[Zone, ...]:
    """The zones that are not blank, the ones to prefer first."""
    zones = [*_reply_zones(normalised(reply), parser), Zone("reasoning", normalised(reasoning))]
    return tuple(zone for zone in zones if zone.text.strip())


def normalised(text: str) -> str:
    """The text with `\\n` as its only newline, without byte order marks, control tokens and quotation marks of a block.

    Channels of the harmony format become think tags.
    """
    text = text[-LONGEST_REPLY:].replace("\ufeff", "").replace("\r\n", "\n").replace("\r", "\n")
    text = _PLAIN_CHANNELS.sub(r"<think>\n\1\n</think>\n", text)
    text = _CHANNEL.sub(lambda match: "\n</think>\n" if match[1].lower() == "final" else "\n<think>\n", text)
    text = _CONTROL.sub("\n", text)
    text = re.sub(rf"(?<=```)[ \t]*(?=</?{_WORDS}>)", "\n", text, flags=re.IGNORECASE)
    text = re.sub(rf"(</?{_WORDS}>)[ \t]*(?=```)", r"\1\n", text, flags=re.IGNORECASE)
    return _QUOTED_RUN.sub(_unquoted, text)


def _unquoted(run: re.Match[str]) -> str:
    """A quoted block without its marks, if it holds a fence or is the whole text; else as it stands."""
    text = run.group()
    if len(text) == len(run.string) or re.search(r"^ {0,3}>[> \t]*(?:```|~~~)", text, re.MULTILINE):
        return _QUOTED.sub("", text)
    return text


def _reply_zones(text: str, parser: Parser) -> list[Zone]:
    blocks = marked_blocks(text, parser) if _CLOSING.search(text) or _OPENING.search(text) else []
    boundary = _last_closing(text, blocks, parser)
    start = 0 if boundary is None else boundary.end()
    before = Zone("thought", text[: boundary.start()] if boundary else "")
    opening = _first_opening(text, start, blocks)
    if opening is None:
        return [Zone("answer", text[start:]), before]
    unfinished = Zone("thought", text[opening.end() :], unfinished=True)
    return [Zone("answer", text[start : opening.start()]), unfinished, before]


def _first_opening(text: str, start: int, blocks: Sequence[Block]) -> re.Match[str] | None:
    tags = itertools.islice(_OPENING.finditer(text, start), MOST_TAGS)
    return next((tag for tag in tags if not ((fence := _around(tag, blocks)) and fence.closed)), None)


def _last_closing(text: str, blocks: Sequence[Block], parser: Parser) -> re.Match[str] | None:
    """The last closing tag that ends a thought, not one that prose or code only mentions."""
    tags = list(_CLOSING.finditer(text))[-MOST_TAGS:]
    for tag in reversed(tags):
        fence = _around(tag, blocks)
        if not _is_quoted(tag) and (fence is None or _breaks_out(tag, fence, parser)):
            return tag
    return None


def _around(tag: re.Match[str], blocks: Sequence[Block]) -> Block | None:
    return next((block for block in blocks if block.start <= tag.start() < block.end), None)


def _is_quoted(tag: re.Match[str]) -> bool:
    before, after = tag.string[tag.start() - 1 : tag.start()], tag.string[tag.end() : tag.end() + 1]
    return before == after and before in ("`", '"', "'")


def _breaks_out(tag: re.Match[str], fence: Block, parser: Parser) -> bool:
    """Whether a tag inside a block ends a thought all the same, which shows that a closing fence is missing before it.

    It stands on a line of its own, nothing in the block opens it, and the block is unclosed or no program.
    """
    before = tag.string[max(fence.start, tag.start() - LOOK_BACK) : tag.start()]
    alone = not before.rpartition("\n")[2].strip() and tag.string[tag.end() : tag.end() + 1] in ("", "\n")
    return alone and _OPENING.search(before) is None and not (fence.closed and parser.is_whole(fence.text))
