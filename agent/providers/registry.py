"""Finding a provider by its name: shipped, installed beside us, or a function in a file of the user's own.

What has a name is a function `provider(options, run)` that gives a `Provider`. It is called before a run starts, to
hear early of what is lacking, and again once it has: so it looks, and starts nothing.
"""

import pkgutil
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING

from kernelwright.agent.log.events import Event
from kernelwright.agent.providers.options import ProviderOptions
from kernelwright.agent.providers.provider import Provider, ProviderError, RunRecord
from kernelwright.agent.providers.reply_cache import CachedProvider, ReplyCache
from kernelwright.agent.strategies.plugins import function_in

if TYPE_CHECKING:
    from kernelwright.problems import Problem

GROUP = "kernelwright.providers"
KINDS = Path(__file__).with_name("kinds")
Maker = Callable[[ProviderOptions, RunRecord], Provider]


class _NotStarted:
    """What is known of a run before there is one."""

    folder = Path()

    def events(self, problem: str | None = None, after: int = 0) -> Iterable[Event]:
        return ()

    def problem(self, name: str) -> "Problem":
        raise ProviderError(f"there is no run yet, and so no problem {name!r} in it; ask once it has started")


def providers() -> dict[str, EntryPoint]:
    """All that can be named: those that ship, then those of installed packages, which may not take a shipped name."""
    names = [module.name for module in pkgutil.iter_modules([str(KINDS)])]
    shipped = {name: EntryPoint(name, f"{__package__}.kinds.{name}:provider", GROUP) for name in names}
    return shipped | {point.name: point for point in entry_points(group=GROUP) if point.name not in shipped}


def provider_for(options: ProviderOptions, run: RunRecord) -> Provider:
    """The provider; `ProviderError` for what the user or the machine lacks, such as a key. See `providing`."""
    provider = _bare(options, run)
    if options.cache is None:
        return provider
    place = getattr(provider, "place", f"{options.kind} {options.model_file or ''}")
    return CachedProvider(provider, ReplyCache(Path(options.cache)), place)


def check_provider(options: ProviderOptions) -> None:
    """Raise, before a run is started, what `provider_for` would; and where the response cache can not be written."""
    _bare(options, _NotStarted())
    if options.cache is not None:
        ReplyCache(Path(options.cache)).try_out()


@asynccontextmanager
async def providing(options: ProviderOptions, run: RunRecord) -> AsyncIterator[Provider]:
    """The provider for as long as the block lasts: what it started ends with it."""
    provider = provider_for(options, run)
    try:
        yield provider
    finally:
        bare = provider.provider if isinstance(provider, CachedProvider) else provider
        if (close := getattr(bare, "close", None)) is not None:
            close()


def _bare(options: ProviderOptions, run: RunRecord) -> Provider:
    return _maker(options.kind)(options, run)


def _maker(name: str) -> Maker:
    if ":" in name:
        return function_in(name, "provider", ProviderError, "(options, run)")
    known = providers()
    if name not in known:
        raise ProviderError(
            f"no provider {name!r}; there are: {', '.join(known)}, and any function as path/to/file.py:function"
        )
    maker: Maker = known[name].load()
    return maker
