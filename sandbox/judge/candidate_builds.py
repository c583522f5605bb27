"""What is the same of every builder, and those that come late: for extensions that only a worker has asked for."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

from kernelwright.sandbox.build import BuildStore, HeaderShelf, Toolchain, read_record, toolchain
from kernelwright.sandbox.build.build_store import read_failures
from kernelwright.sandbox.calls.backend import architecture
from kernelwright.sandbox.calls.sessions import Session, Unbuilt
from kernelwright.sandbox.calls.timeouts import ImportTimeout
from kernelwright.sandbox.judge.stages import Built
from kernelwright.sandbox.machine.identity import versions_used
from kernelwright.sandbox.tensors.values import Values
from kernelwright.sandbox.verdict.errors import StageFailed
from kernelwright.sandbox.verdict.settings import Settings

MOST_LATE_BUILDS = 16
T = TypeVar("T")


def build_key(source: str, tools: Toolchain | None, arguments: Values, settings: Settings) -> str:
    """The digest under which a finished build is kept: of all that can make another one of the same source."""
    digest = hashlib.sha256(repr(arguments.tree).encode())
    for raw in arguments.tensors:
        digest.update(repr((raw.dtype, raw.shape)).encode() + raw.on_host)
    more = {"arguments": digest.hexdigest()} | ({"device": architecture(settings)} if settings.gpu else {})
    return BuildStore.key(source, tools, **more, **versions_used(source))


@contextmanager
def built_by(built: Built, tools: Toolchain | None, settings: Settings) -> Iterator[Session]:
    """A builder, not yet greeted. What it has made is kept and what it tells is noted when the context ends.

    What its extensions need of the light header and is not there yet is made beside it, and no longer than it takes.
    """
    folder = built.folder.path
    before, printed = len(read_record(folder).compilations), ""
    try:
        with built.stage("build"), header_made(built, tools):
            with Session("builder", built.folder, settings) as session:
                yield session
                starved = session.ran_out_of_memory
            printed = session.close()
            if tools is not None and not starved:  # with more memory it might have been built
                store = BuildStore()
                (store.keep_more if built.late_builds else store.keep)(built.key, folder / "build")
    finally:
        built.failed_builds = read_failures(folder / "build", printed)
        if tools is not None:
            built.ways = (*built.ways, *read_record(folder).ways[before:])


def with_late_builds(built: Built, settings: Settings, measure: Callable[[], T]) -> T:
    """Measure; where a worker asks for an extension that was not built before, have it built, and begin again."""
    while True:
        try:
            return measure()
        except Unbuilt:
            built.end_workers()
            _build_late(built, settings)


def _build_late(built: Built, settings: Settings) -> None:
    """Have a builder make the call that a worker has noted. All builds of a candidate share one limit."""
    left_s = settings.build_timeout_s - built.seconds.get("build", 0.0)
    if left_s <= 0 or built.late_builds >= MOST_LATE_BUILDS:
        raise StageFailed(
            "build", f"there is no end to what it builds: {built.late_builds} extensions in calls, and more"
        )
    built.late_builds += 1
    tools = toolchain() if settings.shortcuts else None
    message = {
        "op": "build noted",
        "built": str(built.folder.path / "build"),
        "shortcuts": shortcuts_for(tools, settings),
    }
    with built_by(built, tools, settings) as session:
        session.greet()
        session.ask(message, ImportTimeout(settings.import_timeout_s, left_s))


def shortcuts_for(tools: Toolchain | None, settings: Settings) -> dict[str, Any]:
    """What a builder is told of them; empty where there are none."""
    return tools.plan(settings.memory_bytes, cuda_architectures=architecture(settings)) if tools else {}


@contextmanager
def header_made(built: Built, tools: Toolchain | None) -> Iterator[None]:
    """Make what of the light header is missing, beside the block; its time stands apart in `seconds`."""
    with ExitStack() as stack:
        if tools is not None:
            shelf = HeaderShelf(tools)
            making = stack.enter_context(shelf.making(shelf.missing(built.candidate.source)))
        yield
    if tools is not None and making.seconds:
        built.seconds["headers"] = built.seconds.get("headers", 0.0) + making.seconds
