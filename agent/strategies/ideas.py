"""Named approaches: what a first draft or an improvement is told to try."""

from sandbox.verdict import Record


class Idea(Record):
    """An approach that an ask can name."""

    name: str
    directive: str = ""
    """Empty for the role's default."""


DRAFTS = (
    Idea(name="one simple kernel"),
    Idea(
        name="work in blocks",
        directive="split the work into blocks that stay in the fastest memory (registers, cache or shared memory) "
        "while they are used, so that each value is fetched from slow memory once.",
    ),
    Idea(
        name="fuse all steps",
        directive="do all steps of the computation in one pass over the data, with no intermediate tensor in memory.",
    ),
    Idea(name="another design"),
)
IMPROVEMENTS = (
    Idea(name="what limits it"),
    Idea(
        name="less memory traffic",
        directive="Cut the memory traffic: count the bytes that are moved now and the fewest that could be, name where "
        "they differ most, and change that.",
    ),
    Idea(
        name="wide and regular access",
        directive="Make the innermost accesses contiguous and as wide as the hardware allows, and lift bounds checks, "
        "divisions and index arithmetic out of the inner loop.",
    ),
    Idea(
        name="more parallel work",
        directive="Use all units: change how the work is split so that each gets an equal share, with enough "
        "independent operations in flight to hide latency.",
    ),
    Idea(
        name="less overhead of the call",
        directive="Cut what each call costs besides the arithmetic: allocations, copies, layout changes, "
        "checks and launches that could be done once or not at all.",
    ),
)
