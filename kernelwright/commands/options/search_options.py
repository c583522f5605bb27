"""The options of `run` that steer the search beyond model, strategy and attempts: `--set NAME=VALUE`."""

import json
from collections.abc import Sequence
from typing import Any

from kernelwright.commands.options.exit_codes import UserMistake

LISTS = {"models", "advisers", "without", "learn_from"}


def search_options(settings: Sequence[str]) -> dict[str, Any]:
    """`slots=4`, `budget.usd=2.5`, `models=a,b` as fields of `SearchConfig`; `UserMistake` for what is none."""
    from kernelwright.agent.log.config import Budget, SearchConfig

    options: dict[str, Any] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        outer, _, inner = name.partition(".")
        known = outer in SearchConfig.model_fields and (not inner or inner in Budget.model_fields)
        if not equals or not known:
            there = ", ".join(sorted(SearchConfig.model_fields))
            raise UserMistake(f"no search setting {setting!r}; give NAME=VALUE, where the names are: {there}")
        if inner:
            options.setdefault(outer, {})[inner] = _value(value)
        else:
            options[outer] = value.split(",") if outer in LISTS else _value(value)
    return options


def checked_config(fields: dict[str, Any]) -> Any:
    """The `SearchConfig` of these fields; `UserMistake` that names the field at fault."""
    from pydantic import ValidationError

    from kernelwright.agent.log.config import SearchConfig

    try:
        return SearchConfig.model_validate(fields)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in fault["loc"])
        raise UserMistake(f"search setting {key!r} can not be {fault['input']!r}: {_said(fault['msg'])}") from error


def _said(message: str) -> str:
    """What pydantic says is wrong, as the end of a sentence of ours."""
    return message.partition(", ")[0].replace("Input", "it")


def _value(text: str) -> Any:
    """A number, true or false where it reads as one, else the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text
