"""The usual servers by name: address, form and the variable of the key, from a table that the user may extend."""

import tomllib
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from kernelwright.agent.providers.options import Api, OpenAISettings
from kernelwright.agent.providers.provider import ProviderError
from kernelwright.problems.record.base import Record
from kernelwright.problems.record.faults import first_fault

SHIPPED = Path(__file__).parents[2] / "data" / "providers.toml"


class Preset(Record):
    """One server."""

    base_url: str
    key: str = ""
    """Name of the environment variable that holds the key; empty where the server asks for none."""
    api: Api = "chat"

    @property
    def settings(self) -> OpenAISettings:
        """Where and how to ask; a key that is named is needed."""
        return OpenAISettings(base_url=self.base_url, api_key_env=self.key, needs_key=bool(self.key), api=self.api)


TABLE = TypeAdapter(dict[str, Preset])


def load_presets(path: Path | None = None) -> dict[str, Preset]:
    """The presets that ship, below those of the user's own table; `ProviderError` where that is malformed."""
    return _table(SHIPPED) | ({} if path is None else _table(path))


def _table(path: Path) -> dict[str, Preset]:
    try:
        return TABLE.validate_python(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ProviderError(f"cannot read the presets {path} ({error.strerror}); check the path") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ProviderError(f"the presets {path} are no valid TOML: {error}; correct them") from error
    except ValidationError as error:
        key, said = first_fault(error)
        raise ProviderError(f"the presets {path}: {key}: {said}; correct it") from error
