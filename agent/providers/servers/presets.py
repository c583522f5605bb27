"""The usual servers by name: address, form and the variable of the key, from a table that the user may extend."""

from pathlib import Path

from kernelwright.agent.providers.options import Api, OpenAISettings
from kernelwright.agent.providers.provider import ProviderError
from kernelwright.problems.record.base import Record, read_table

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


def load_presets(path: Path | None = None) -> dict[str, Preset]:
    """The presets that ship, below those of the user's own table; `ProviderError` where that is malformed."""
    tables = [
        read_table(file, dict[str, Preset], "the table of servers", ProviderError) for file in (SHIPPED, path) if file
    ]
    return {name: preset for table in tables for name, preset in table.items()}
