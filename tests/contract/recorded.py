"""The recorded data: reading, writing, and comparing it with the live surface under the renames."""

import json
import tomllib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import typer

from tests.contract.surface import PROGRAM, Surface, refused_keyword, walk

DATA = Path(__file__).parent / "data"
RENAMES = DATA / "renames.toml"
WRITE = "python -m tests.contract --write"
Renames = Mapping[str, str]


def read(subject: str) -> Surface:
    return tomllib.loads((DATA / f"{subject}.toml").read_text(encoding="utf-8"))


def write(subject: str, surface: Surface, renames: Renames) -> None:
    """Record a live surface, without the old names of the renames."""
    old = set(_addresses(surface, renames))
    lines = [f"# Written by {WRITE}; a rename is a line in renames.toml."]
    for section, table in sorted(surface.items()):
        if (section, None) not in old:
            lines += ["", f"[{json.dumps(section)}]"]
            lines += [
                f"{json.dumps(name)} = {json.dumps(value)}"
                for name, value in sorted(table.items())
                if (section, name) not in old
            ]
    (DATA / f"{subject}.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")


def renames_of(subject: str) -> Renames:
    table: Renames = tomllib.loads(RENAMES.read_text(encoding="utf-8")).get(subject, {})
    return table


def faults(subject: str, recorded: Surface, live: Surface, renames: Renames) -> list[str]:
    """A sentence for whatever was lost, changed, or is new and not recorded."""
    found, expected = [], set(_addresses(live, renames))
    for section, table in recorded.items():
        now = section_now(section, renames)
        if now not in live:
            found.append(f"{subject}: {now} is gone; bring it back, or name its successor in {RENAMES.name}: "
                         f'"{section}" = "NEW"')  # fmt: skip
            continue
        for name, fact in table.items():
            new = renamed(section, name, renames)
            expected.add((now, new))
            if new not in live[now]:
                found.append(f'{subject}: {now}: {new} is gone; bring it back, or name its successor in {RENAMES.name}'
                             f', [{subject}]: "{section}: {name}" = "NEW"')  # fmt: skip
            elif live[now][new] != fact:
                found.append(f"{subject}: {now}: {new} was {fact!r} and is {live[now][new]!r}; "
                             f"change it back, or record it in {subject}.toml")  # fmt: skip
    for section, table in live.items():
        for name, fact in table.items():
            if (section, name) not in expected:
                found.append(f"{subject}: {section}: {name} is not recorded; add to {subject}.toml under "
                             f"[{json.dumps(section)}] the line {json.dumps(name)} = {json.dumps(fact)}, "
                             f"or run {WRITE}")  # fmt: skip
    return found


def section_now(section: str, renames: Renames) -> str:
    """The section under the renames: its own, that of a group or class that it lies in, or that of a public name."""
    for end in (len(section), *(at for at in range(len(section) - 1, 0, -1) if section[at] in " .")):
        for address in (section[:end], f"names: {section[:end]}"):
            if address in renames:
                return renames[address] + section[end:]
    return section


def renamed(section: str, name: str, renames: Renames) -> str:
    """The name under the renames; those of a path in JSON hold for all below it too."""
    for scope in (section, "*"):
        for end in (len(name), *(at for at in range(len(name) - 1, 0, -1) if name[at] in ".[")):
            if f"{scope}: {name[:end]}" in renames:
                return renames[f"{scope}: {name[:end]}"] + name[end:]
    return name


def _addresses(live: Surface, renames: Renames) -> Iterator[tuple[str, str | None]]:
    """What is live under an old name, as an alias."""
    for section, table in live.items():
        is_old = section_now(section, renames) != section
        if is_old:
            yield section, None
        for name in table:
            if is_old or renamed(section, name, renames) != name:
                yield section, name


def pairs(recorded: Surface, renames: Renames) -> Iterator[tuple[str, str | None, str]]:
    """Each rename as section, old name and new name; no old name where a whole section was renamed.

    Raises `KeyError` for a rename of what was never recorded under either name.
    """
    for address, new in renames.items():
        section, colon, name = address.partition(": ")
        if not colon:
            if not {section, new} & set(recorded):
                raise KeyError(f"{RENAMES.name} renames {section!r}, which is not recorded")
            yield section, None, new
            continue
        held = [one for one, table in recorded.items() if section in ("*", one) and {name, new} & set(table)]
        if not held:
            raise KeyError(f"{RENAMES.name} renames {address!r}, which is not recorded")
        yield from ((one, name, new) for one in held)


def command_faults(app: typer.Typer, recorded: Surface, renames: Renames) -> list[str]:
    """What is wrong with old names on the command line: each must be parsed like the new one, and warn."""
    live = dict(walk(app))
    found = []
    for section, old, new in pairs(recorded, renames):
        now = section_now(section, renames)
        path = () if now == PROGRAM else tuple(now.split())
        if old is None:
            before, after = tuple(section.split()), tuple(new.split())
            if before not in live or after not in live:
                found.append(f"{section} and {new} are not both commands")
            elif {one.name for one in live[before].params} != {one.name for one in live[after].params}:
                found.append(f"{section} does not take what {new} takes")
            elif not live[before].deprecated:
                found.append(f"{section} is not marked as deprecated")
            continue
        value = [] if recorded.get(now, {}).get(new, recorded[section].get(old)) in ("flag", "counted") else ["1"]
        results = [_parsed(live[path], now, [spelling, *value]) for spelling in (old, new)]
        if isinstance(results[0][0], Exception) or results[0][0] != results[1][0]:
            found.append(f"{section} {old} is not understood as {new}")
        elif not _warns(results[0][1], old):
            found.append(f"{section} {old} is understood and does not warn")
    return found


def _parsed(command: Any, name: str, words: list[str]) -> tuple[Any, list[warnings.WarningMessage]]:
    """What a command makes of its words, or the error; and the warnings on the way."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            return command.make_context(name, words, resilient_parsing=True).params, heard
        except Exception as error:
            return error, heard


def name_faults(package: Any, recorded: Surface, renames: Renames) -> list[str]:
    """What is wrong with old public names, fields and parameters: each must be taken, and warn."""
    found = []
    for section, old, new in pairs(recorded, renames):
        if old is None:
            continue  # the sections of a name follow it in the table of names
        if section == "names":
            found += _kept_name(package, old, new)
        else:
            call = package
            for part in section_now(section, renames).split("."):
                call = getattr(call, part)
            found += _kept_keyword(call, section, old)
    return found


def _kept_name(package: Any, old: str, new: str) -> Iterable[str]:
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        there = getattr(package, old, None)
    if there is None or there is not getattr(package, new, None):
        yield f"{old} is not {new}"
    elif not _warns(heard, old):
        yield f"{old} is there and does not warn"


def _kept_keyword(call: Callable[..., Any], section: str, old: str) -> Iterable[str]:
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        refused = refused_keyword(call, old)
    if refused:
        yield f"{section} does not take {old}"
    elif not _warns(heard, old):
        yield f"{section} takes {old} and does not warn"


def _warns(heard: Iterable[warnings.WarningMessage], old: str) -> bool:
    return any(issubclass(one.category, DeprecationWarning) and old in str(one.message) for one in heard)


def silent_faults(subject: str, recorded: Surface, live: Surface, renames: Renames) -> list[str]:
    """Old names that can not warn and are not there beside the new ones."""
    return [
        f"{subject}: {section}: {old} is not there beside {new}; it must stay for one version"
        for section, old, new in pairs(recorded, renames)
        if (section if old is None else old)
        not in (live if old is None else live.get(section_now(section, renames), {}))
    ]
