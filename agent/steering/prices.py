"""What replies cost: the provider's own statement, else a price table that the user may edit. Unknown stays unknown."""

import tomllib
from fnmatch import fnmatchcase
from pathlib import Path

from pydantic import Field, ValidationError

from kernelwright.agent.log.records import ReplyFacts
from kernelwright.problems.record.base import Record
from kernelwright.problems.record.faults import first_fault

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
    file = SHIPPED if path is None else Path(path)
    try:
        return Prices.model_validate(tomllib.loads(file.read_text(encoding="utf-8")))
    except OSError as error:
        raise PriceError(f"cannot read the price table {file} ({error.strerror}); check the path") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise PriceError(f"the price table {file} is no valid TOML: {error}; correct it") from error
    except ValidationError as error:
        key, said = first_fault(error)
        raise PriceError(f"the price table {file}: {key}: {said}; correct it") from error
