"""What replies cost: the provider's own statement, else a price table that the user may edit. Unknown stays unknown."""

from fnmatch import fnmatchcase
from pathlib import Path

from pydantic import Field

from kernelwright.agent.log.records import ReplyFacts
from kernelwright.problems.record.base import Record, read_table

SHIPPED = Path(__file__).parent.parent / "data" / "prices.toml"
MILLION = 1_000_000


class PriceError(ValueError):
    """A price table that cannot be used; the message is one sentence."""


class Price(Record):
    """USD for a million tokens."""

    model: str
    """The name as the reply or the ask gives it; * stands for anything."""
    input: float = Field(ge=0)
    cached: float | None = Field(default=None, ge=0)
    """None: the same as other input."""
    output: float = Field(ge=0)


class Prices(Record):
    """The whole table."""

    price: tuple[Price, ...] = ()

    def usd(self, reply: ReplyFacts, asked: str) -> float | None:
        """What a reply cost, by the model that gave it or that was asked; None where it is unknown."""
        usage = reply.usage
        if usage.cost_usd is not None:
            return usage.cost_usd
        price = self.of(reply.model) or self.of(asked)
        if price is None or usage.input_tokens is None or usage.output_tokens is None:
            return None
        cached = usage.cached_tokens or 0
        rate = price.input if price.cached is None else price.cached
        fresh = usage.input_tokens - cached
        return (fresh * price.input + cached * rate + usage.output_tokens * price.output) / MILLION

    def of(self, model: str) -> Price | None:
        """The first entry that fits the model's name."""
        return next((price for price in self.price if fnmatchcase(model, price.model)), None)


def load_prices(path: str | None = None) -> Prices:
    """The table at `path`, or the one that ships; `PriceError` where it cannot be read."""
    return read_table(SHIPPED if path is None else Path(path), Prices, "the price table", PriceError)
