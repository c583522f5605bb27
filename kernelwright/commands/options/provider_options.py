"""The options of `run` that say who answers."""

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kernelwright.commands.options.exit_codes import UserMistake

if TYPE_CHECKING:
    from kernelwright.agent.providers.provider import ProviderOptions

OWN_NAMES = {"local": "SmolLM2-135M-Instruct", "files": "files", "simulated": "simulated"}
"""What the model is called where none is named; others must be told which one."""


class ProviderArguments(NamedTuple):
    """What was typed."""

    provider: str | None
    model: str | None
    base_url: str | None
    api_key_env: str | None
    api: str | None
    presets: Path | None
    folder: Path | None
    cache: Path | None


def provider_options(typed: ProviderArguments) -> "tuple[str, ProviderOptions]":
    """The model's name and who answers in its place; `UserMistake` for what does not go together."""
    from kernelwright.agent.providers.provider import ProviderOptions

    kind = _kind(typed)
    if kind == "recorded" and typed.model:
        raise UserMistake("recorded answers come from no model; leave out --model or --provider recorded")
    if kind != "server" and typed.base_url:
        raise UserMistake(f"--base-url names a server but {_who(kind)}; add --model or leave it out")
    server_only = {"--api": None if kind == "local" else typed.api, "--api-key-env": typed.api_key_env}
    for option, given in server_only.items():
        if kind != "server" and given:
            raise UserMistake(f"{option} {given} is for a server but {_who(kind)}; add --model or leave it out")
    if typed.presets and not typed.provider:
        raise UserMistake(f"--presets {typed.presets} holds servers by name; name one with --provider")
    if kind not in ("files", "recorded") and typed.folder:
        raise UserMistake(f"--folder is for --provider files and recorded, but {_who(kind)}; leave it out")
    model = typed.model or OWN_NAMES.get(kind)
    if model is None and kind != "recorded":
        raise UserMistake(f"--provider {typed.provider} needs the name of a model; add --model")
    options = ProviderOptions.model_validate(
        {
            "kind": kind,
            "server": _server(typed),
            "folder": None if typed.folder is None else str(typed.folder.resolve()),
            "model_file": _model_file(typed) if kind == "local" else None,
            "cache": None if typed.cache is None else str(typed.cache.resolve()),
        }
    )
    return model or "recorded", options


def _kind(typed: ProviderArguments) -> str:
    from kernelwright.agent.providers.registry import load_presets, providers

    if typed.provider is None:
        return "server" if typed.model else "recorded"
    if ":" in typed.provider:
        path, _, function = typed.provider.rpartition(":")
        return f"{Path(path).resolve()}:{function}"
    kinds = [kind for kind in providers() if kind != "server"]
    if typed.provider in kinds:
        return typed.provider
    presets = load_presets(typed.presets)
    if typed.provider not in presets:
        raise UserMistake(
            f"no provider {typed.provider!r}; there are: {', '.join([*kinds, *presets])}, and any function as "
            "path/to/file.py:function"
        )
    return "server"


def _server(typed: ProviderArguments) -> "dict[str, object]":
    """The preset's settings, each replaced by what was typed."""
    from kernelwright.agent.providers.provider import OpenAISettings
    from kernelwright.agent.providers.registry import load_presets

    preset = load_presets(typed.presets).get(typed.provider or "")
    found: dict[str, object] = (preset.settings if preset else OpenAISettings()).model_dump()
    given = {"base_url": typed.base_url, "api_key_env": typed.api_key_env, "api": typed.api}
    if typed.base_url:
        found["needs_key"] = False
    if typed.api not in (None, "chat", "responses"):
        raise UserMistake(f"no form {typed.api!r}; there are: chat, responses")
    return found | {name: value for name, value in given.items() if value is not None}


def _model_file(typed: ProviderArguments) -> str | None:
    """`--model path/to/file.gguf` names a file; any other name is only what the record calls the model."""
    if typed.model is None or not typed.model.endswith(".gguf"):
        return None
    return str(Path(typed.model).resolve())


def _who(kind: str) -> str:
    return "no model was given" if kind == "recorded" else f"{kind} answers"
