import types
import warnings

import pytest
import typer
from pydantic import BaseModel, ConfigDict, model_validator
from typer.core import TyperCommand

import kernelwright
from kernelwright.problems.languages import TARGETS
from tests.contract import recorded, surface
from tests.contract.__main__ import PLAIN

SUBJECTS = [*PLAIN, "service", "json_keys"]
CAN_WARN = {"commands", "names"}
SPOKEN = {"judge": {"--effort": "value", "--json": "flag"}, "score": {"--out": "value"}}


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    found = {subject: read() for subject, read in PLAIN.items()}
    found["service"] = surface.service(tmp_path_factory.mktemp("service"))
    return {subject: without_further_languages(sections) for subject, sections in found.items()}


def without_further_languages(sections):
    """Leave out languages that are not recorded: each is a file of its own, and one more breaks nothing."""
    further = set(TARGETS) - set(recorded.read("choices")["--target"])

    def known(fact):
        return " | ".join(one for one in fact.split(" | ") if one not in further) if isinstance(fact, str) else fact

    return {
        section: {name: known(fact) for name, fact in table.items() if name not in further}
        for section, table in sections.items()
    }


@pytest.mark.parametrize("subject", [*PLAIN, "service"])
def test_what_is_offered_is_what_is_recorded(live, subject):
    assert recorded.faults(subject, recorded.read(subject), live[subject], recorded.renames_of(subject)) == []


@pytest.mark.parametrize("subject", [one for one in (*PLAIN, "service") if one not in CAN_WARN])
def test_what_was_renamed_and_can_not_warn_is_there_under_both_names(live, subject):
    renames = recorded.renames_of(subject)
    assert recorded.silent_faults(subject, recorded.read(subject), live[subject], renames) == []


def test_renamed_commands_options_and_public_names_work_under_their_old_names_and_warn():
    renames = recorded.renames_of("commands")
    assert recorded.command_faults(surface.kernelwright_app, recorded.read("commands"), renames) == []
    assert recorded.name_faults(kernelwright, recorded.read("names"), recorded.renames_of("names")) == []


def test_renames_are_of_known_subjects():
    assert set(recorded.tomllib.loads(recorded.RENAMES.read_text())) <= set(SUBJECTS)


LIVE = {
    "the same": ({"judge": {"--effort": "value", "--json": "flag"}, "score": {"--out": "value"}}, []),
    "an option lost": ({"judge": {"--json": "flag"}, "score": {"--out": "value"}}, ["judge: --effort is gone"]),
    "a command lost": ({"judge": SPOKEN["judge"]}, ["score is gone"]),
    "an option changed": (
        {"judge": {"--effort": "flag", "--json": "flag"}, "score": {"--out": "value"}},
        ["judge: --effort was 'value' and is 'flag'"],
    ),
    "an option more": (
        {**SPOKEN, "score": {"--out": "value", "--top": "value"}},
        ['score: --top is not recorded; add to commands.toml under ["score"] the line "--top" = "value"'],
    ),
    "a command more": ({**SPOKEN, "rank": {"--top": "value"}}, ["rank: --top is not recorded"]),
}


@pytest.mark.parametrize("name", LIVE)
def test_a_difference_is_told_with_what_to_do(name):
    now, expected = LIVE[name]
    found = recorded.faults("commands", SPOKEN, now, {})
    assert len(found) == len(expected)
    assert all(sentence in fault for sentence, fault in zip(expected, found, strict=True))


RENAMED = {
    "an option": ({"judge: --effort": "--depth"}, {**SPOKEN, "judge": {"--depth": "value", "--json": "flag"}}),
    "an option with its alias": (
        {"*: --effort": "--depth"},
        {**SPOKEN, "judge": {"--depth": "value"} | SPOKEN["judge"]},
    ),
    "a command": ({"score": "judge-many"}, {"judge": SPOKEN["judge"], "judge-many": SPOKEN["score"]}),
    "a command with its alias": ({"score": "judge-many"}, {**SPOKEN, "judge-many": SPOKEN["score"]}),
}


@pytest.mark.parametrize("name", RENAMED)
def test_one_line_is_enough_for_a_rename(name):
    renames, now = RENAMED[name]
    assert recorded.faults("commands", SPOKEN, now, renames) == []
    assert recorded.faults("commands", SPOKEN, now, {}) != []


def test_a_renamed_path_of_json_takes_what_is_below_it_along():
    held = {"judge": {"jail": "key", "samples": "key", "samples[].workers": "key"}}
    now = {"judge": {"jail": "key", "timings": "key", "timings[].workers": "key"}}
    assert recorded.faults("json_keys", held, now, {"judge: samples": "timings"}) == []


def test_a_renamed_public_name_takes_its_fields_along():
    held = {
        "names": {"Judging": "class"},
        "Judging": {"server": "1, optional"},
        "Judging.judge": {"problem": "1, required"},
    }
    now = {"names": {"Pool": "class"}, "Pool": held["Judging"], "Pool.judge": held["Judging.judge"]}
    assert recorded.faults("names", held, now, {"names: Judging": "Pool"}) == []


def test_a_rename_of_what_was_never_there_is_told():
    with pytest.raises(KeyError, match="--width"):
        recorded.silent_faults("commands", SPOKEN, SPOKEN, {"judge: --width": "--depth"})


def test_written_data_are_read_again_without_the_old_names(tmp_path, monkeypatch):
    monkeypatch.setattr(recorded, "DATA", tmp_path)
    now = {"judge": {"--depth": "value", "--effort": "value"}, "evaluate": {"--json": "flag"}, "judged": {"a": 'b"\\'}}
    recorded.write("commands", now, {"judge: --effort": "--depth", "evaluate": "judge"})
    assert recorded.read("commands") == {"judge": {"--depth": "value"}, "judged": now["judged"]}


class Renaming(TyperCommand):
    """A command whose option `--effort` became `--depth`."""

    warns = True

    def parse_args(self, ctx, args):
        if "--effort" in args and self.warns:
            warnings.warn("--effort is now --depth", DeprecationWarning, stacklevel=2)
        return super().parse_args(ctx, ["--depth" if word == "--effort" else word for word in args])


class Silent(Renaming):
    warns = False


def app_of(kind, deprecated):
    app = typer.Typer()

    def judge(depth: str = "rank"):
        pass

    def score(out: str = "scores"):
        pass

    app.command("judge", cls=kind)(judge)
    app.command("judge-many")(score)
    app.command("score", deprecated=deprecated)(score)
    return app


@pytest.mark.parametrize(
    ("kind", "deprecated", "said"),
    [
        (Renaming, True, []),
        (Silent, False, ["judge --effort is understood and does not warn", "score is not marked as deprecated"]),
        (TyperCommand, True, ["judge --effort is not understood as --depth"]),
    ],
)
def test_an_old_option_or_command_has_to_work_and_to_warn(kind, deprecated, said):
    renames = {"judge: --effort": "--depth", "score": "judge-many"}
    assert recorded.command_faults(app_of(kind, deprecated), SPOKEN, renames) == said


class Lenient(BaseModel):
    """A record whose field `pairs` became `samples`."""

    model_config = ConfigDict(extra="forbid")
    needed: str
    samples: int = 1

    @model_validator(mode="before")
    @classmethod
    def _old(cls, given):
        if "pairs" in given:
            warnings.warn("pairs is now samples", DeprecationWarning, stacklevel=2)
            given = {"samples" if name == "pairs" else name: value for name, value in given.items()}
        return given


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")
    needed: str
    samples: int = 1


def package_of(record, warns):
    package = types.ModuleType("package")

    def old(name):
        if name != "Options":
            raise AttributeError(name)
        if warns:
            warnings.warn("Options is now Settings", DeprecationWarning, stacklevel=2)
        return record

    package.Settings, package.__getattr__ = record, old
    return package


@pytest.mark.parametrize(
    ("record", "warns", "said"),
    [
        (Lenient, True, []),
        (Lenient, False, ["Options is there and does not warn"]),
        (Strict, True, ["Options does not take pairs"]),
    ],
)
def test_an_old_public_name_or_field_has_to_work_and_to_warn(record, warns, said):
    held = {"names": {"Options": "record"}, "Options": {"pairs": "optional"}}
    renames = {"names: Options": "Settings", "Options: pairs": "samples"}
    assert recorded.name_faults(package_of(record, warns), held, renames) == said


def test_an_old_key_has_to_stand_beside_the_new_one():
    held, renames = {"judge": {"jail": "key"}}, {"judge: jail": "layers"}
    both = {"judge": {"jail": "key", "layers": "key"}}
    assert recorded.silent_faults("json_keys", held, both, renames) == []
    assert len(recorded.silent_faults("json_keys", held, {"judge": {"layers": "key"}}, renames)) == 1
