"""The options of a search and of the provider that answers it; `RunConfig` of `evals/runs.py` holds both."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, TypeAdapter, model_validator

from kernelwright.agent.compat import provider_options
from kernelwright.problems.problem import Record
from kernelwright.prompts import Target

Adviser = Literal["plan", "critique", "reflect"]
Api = Literal["chat", "responses"]


class Budget(Record):
    """Limits on spending other than attempts; None sets no limit.

    They are checked before each decision, so running attempts may exceed them.
    """

    tokens: int | None = Field(default=None, ge=1)
    """Input and output tokens. With a limit, a reply of unknown usage ends the search."""
    usd: float | None = Field(default=None, gt=0)
    """By the provider's own statement or the price table. With a limit, an unknown price ends the search."""
    judge_s: float | None = Field(default=None, gt=0)  # seconds of judging, over all stages
    wall_s: float | None = Field(default=None, gt=0)  # wall seconds, those between two processes of one run left out


class SearchConfig(Record):
    """All settings of a search: the part of a run's config that each problem's log repeats."""

    target: Target = "cpp"
    model: str
    strategy: str = "refine"  # the name of a strategy, or `path/to/file.py:function`
    attempts: int = Field(default=10, ge=1)  # for each problem; tuning and advice do not count
    budget: Budget = Budget()  # further limits for each problem
    batch: Budget = Budget()  # further limits for all problems of the run together
    share: bool = True  # give attempts that a problem leaves unspent to those with the highest expected gain
    drafts: int = Field(default=3, ge=1)  # first versions from the reference, each with an idea of its own
    repairs: int = Field(default=2, ge=0)
    """Repairs in a row before a failure is given up, where about half of the repairs pass."""
    patience: int = Field(default=20, ge=1)  # improvements without a gain before the search ends
    gain: float = Field(default=0.02, ge=0)
    """The least share by which an attempt must be faster than the best so far to count as a gain."""
    runner_up: int = Field(default=4, ge=0)
    """Every N-th improvement starts from the best attempt of another idea family; 0 for never."""
    near_floor: float = Field(default=0.9, gt=0, le=1)
    """The search ends once the roofline is this share of the best time, where it is known."""
    confirm: int = Field(default=3, ge=0)
    """The number of fastest attempts that are re-evaluated before the best is named; 0 for none."""
    tune: int = Field(default=8, ge=0)
    """Variants of declared constants judged for each problem; 0 for none. They cost no tokens."""
    models: tuple[str, ...] = ()  # further models, each stronger and dearer than the one before it, from `model` on
    choice: Literal["escalate", "bandit"] = "escalate"
    """`escalate`: the next model after `stall` attempts without a gain. `bandit`: the best gain a USD, by trial."""
    stall: int = Field(default=6, ge=1)
    advisers: tuple[Adviser, ...] = ()  # roles of further asks, for advice; off by default
    slots: int = Field(default=1, ge=1)
    """Concurrent attempts for a problem. Above 1 a second run makes the same decisions only in `lockstep`."""
    lockstep: bool = False  # decide only when nothing is running: slower, and independent of the order of the answers
    problems_at_once: int = Field(default=1, ge=1)
    without: tuple[str, ...] = ()  # sections that prompts leave out
    history_tokens: int = Field(default=700, ge=0)
    """The table of earlier attempts is cut to about this, the least telling rows first."""
    measure: bool = True  # judge the reference once before the first ask, so that prompts state PyTorch's times
    prices: str | None = None  # path of a price table; None for the one that ships
    learn: bool = True  # try ideas in the order of their wins at other problems of the run; else in the bank's order
    learn_from: tuple[str, ...] = ()  # folders of earlier runs whose record of ideas is used as well
    seed: int = 0
    temperature: float | None = None  # None leaves it to the provider
    max_tokens: int | None = Field(default=None, ge=1)
    provider_retries: int = Field(default=2, ge=0)
    """Retries after a passing failure of the provider, beyond those of its own client."""
    retry_delay_s: float = Field(default=10.0, ge=0)  # wait before the first of these; doubled for each further one


class ProviderOptions(Record):
    """The provider of a run. Kinds with options of their own have a subclass; plug-ins have this record."""

    kind: str = "recorded"  # the name of a provider, or `path/to/file.py:function`
    cache: str | None = None  # a folder of earlier answers that are used first; None for none

    @model_validator(mode="before")
    @classmethod
    def _read(cls, raw: Any) -> Any:
        raw = raw.model_dump() if isinstance(raw, ProviderOptions) else raw
        return provider_options(raw, cls.model_fields)


class ServerOptions(ProviderOptions):
    """A server and its limits. It holds no key, so it may be written down."""

    kind: Literal["server"] = "server"
    base_url: str | None = None  # None for the variable OPENAI_BASE_URL, or else OpenAI's own
    api_key_env: str = "OPENAI_API_KEY"  # name of the variable that holds the key; empty for a server without keys
    needs_key: bool = False  # refuse to start where the variable holds none; OpenAI's own server always needs one
    api: Api = "chat"
    max_retries: int = Field(default=5, ge=0)
    """Of one request, by the client: on lost connections, timeouts, 408, 409, 429 and 5xx, heeding Retry-After."""
    timeout_s: float = Field(default=600, gt=0)  # longest silence of the server
    deadline_s: float = Field(default=3600, gt=0)  # longest time for one request in all, retries included


class LocalOptions(ProviderOptions):
    kind: Literal["local"] = "local"
    model_file: str | None = None  # a GGUF file; None for the model that `kernelwright models fetch` gets
    api: Api = "chat"


class FilesOptions(ProviderOptions):
    kind: Literal["files"] = "files"
    folder: str | None = None  # of tasks and answers; None for `tasks` in the run's own folder


class RecordedOptions(ProviderOptions):
    kind: Literal["recorded"] = "recorded"
    folder: str | None = None  # of recorded sessions, laid out as in the catalog; None for the catalog that ships


def _own_kind(options: Any) -> str:
    kind = options.get("kind", "recorded") if isinstance(options, dict) else getattr(options, "kind", "")
    return kind if kind in ("server", "local", "files", "recorded") else "other"


AnyProvider = Annotated[
    Annotated[ServerOptions, Tag("server")]
    | Annotated[LocalOptions, Tag("local")]
    | Annotated[FilesOptions, Tag("files")]
    | Annotated[RecordedOptions, Tag("recorded")]
    | Annotated[ProviderOptions, Tag("other")],
    Discriminator(_own_kind),
]


def read_provider(options: ProviderOptions | dict[str, Any]) -> AnyProvider:
    """Give the options as the record of their kind."""
    adapter: TypeAdapter[AnyProvider] = TypeAdapter(AnyProvider)
    return adapter.validate_python(options)
