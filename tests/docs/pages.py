"""The pages that people read, and the commands in them."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("[a-z]*/README.md"), *DOCS.rglob("*.md")])
NEEDS = ("a GPU", "GPUs", "a key", "a server", "a cluster", "Ray", "a model", "the network", "a program of yours")
"""What a command's comment may say that it needs; such a command is checked for its words and not run."""


@dataclass(frozen=True)
class Line:
    """A line of a block of commands."""

    page: str
    text: str

    @property
    def words(self):
        return shlex.split(self.text, comments=True)

    @property
    def comment(self):
        return self.text.partition(" #")[2].strip()

    @property
    def needs(self):
        """What the line says that it needs; None where it is to be run."""
        told = re.match(r"needs (.+?)(?:[,:;]|$)", self.comment)
        return told[1] if told else None

    def __str__(self):
        return f"{self.page}: {self.text}"


def name_of(page):
    return str(page.relative_to(ROOT))


def blocks(page, language):
    """The fenced blocks of a page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def lines(page):
    texts = [text.strip() for block in blocks(page, "sh") for text in block.splitlines()]
    return [Line(name_of(page), text) for text in texts if text and not text.startswith("#")]


def runnable(page):
    """The commands of ours that say nothing of what they need."""
    return [line for line in lines(page) if line.words[0] == "kernelwright" and line.needs is None]


def prose(page):
    """The page without its fenced blocks."""
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def inline(page):
    """What stands between single backticks in the prose, line ends as spaces."""
    return [" ".join(code.split()) for code in re.findall(r"(?<!`)`([^`]+)`(?!`)", prose(page))]
