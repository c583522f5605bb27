"""One extension of the corpus, and a process that builds it and says what came of it."""

from typing import NamedTuple


class Case(NamedTuple):
    """How one extension is built and what is asked of it.

    `build` is an expression for what `load_inline` or `load` gives, over `load_inline`, `load`, `SOURCE` and `write`
    (a text into a file; its path). `ask` is an expression for tensors, numbers and texts, over `m`, `torch` and `x`.
    """

    name: str
    source: str
    ask: str = "m.run(x)"
    build: str = 'load_inline("ext", SOURCE, functions=["run"])'
    wrong: bool = False
    """Whether it must fail, the stock way and ours."""


def inline(*options: str, functions: str = '["run"]') -> str:
    """The call of `load_inline` with these options, written out."""
    return "load_inline(" + ", ".join(['"ext"', "SOURCE", f"functions={functions}", *options]) + ")"


def flags(*words: str, link: tuple[str, ...] = ()) -> str:
    """The options for these compiler and linker flags."""
    linking = f", extra_ldflags={list(link)!r}" if link else ""
    return f"extra_cflags={list(words)!r}{linking}"
