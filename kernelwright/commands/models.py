"""`kernelwright models`: the servers that can be named, and the small model that answers on this machine."""

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from kernelwright.options import PresetsOption, check_threads
from kernelwright.terminal import UserMistake

app = typer.Typer(help="Servers that can be asked by name, and a small model to try.", no_args_is_help=True)


@app.command("list")
def list_(
    presets: PresetsOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a server, nothing else.")] = False,
) -> None:
    """List the servers that `run --provider` knows by name. Beside each, whether the variable of its key is set."""
    from kernelwright.agent.providers.provider import load_presets

    for name, preset in load_presets(presets).items():
        is_set = bool(os.environ.get(preset.key)) if preset.key else None
        if as_json:
            print(json.dumps({"name": name, **preset.model_dump(), "key_is_set": is_set}))
        else:
            key = f"{preset.key} ({'set' if is_set else 'not set'})" if preset.key else "no key"
            print(f"{name:<12} {preset.base_url:<58} {preset.api:<10} {key}")


@app.command("fetch")
def fetch(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, nothing else.")] = False,
) -> None:
    """Get the small model of `run --provider local`. 98 MB, by its checksum, into the cache."""
    from kernelwright.agent.providers.kinds.local import NAME, SHA256
    from kernelwright.agent.providers.kinds.local import fetch as fetch_weights

    path = fetch_weights()
    print(json.dumps({"model": NAME, "path": str(path), "sha256": SHA256}) if as_json else f"{NAME}: {path}")


@app.command("serve")
def serve(
    model: Annotated[Path | None, typer.Argument(help="A GGUF file; default: what `fetch` got.")] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads; with more than there are idle cores it is slower.")] = 1,
) -> None:
    """Serve a model on this machine, in OpenAI's format. Prints its address, and goes on until it is stopped."""
    from kernelwright.agent.providers.kinds.local import LocalServer, weights

    check_threads(threads)
    if model is not None and not model.is_file():
        raise UserMistake(f"there is no model file {model}; check the path")
    with LocalServer(model or weights(), threads) as server:
        print(server.base_url, flush=True)
        server.wait()
