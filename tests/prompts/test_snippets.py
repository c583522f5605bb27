"""The programs behind the explained instructions: they compile, and what needs no device is right."""

import re
import shutil

import pytest

from kernelwright.prompts.ideas import SNIPPETS, snippet_texts, snippets
from kernelwright.prompts.rendering import TEMPLATES
from tests.support.snippets import NO_COMPILER, PROGRAMS, build, run

compiled = pytest.mark.skipif(NO_COMPILER is not None, reason=NO_COMPILER or "")


def of_templates():
    text = "".join(path.read_text() for path in TEMPLATES.rglob("*.j2"))
    plain = set(re.findall(r'snippet\("(\w+)"\)', text))
    return plain | ({"bf16_rows", "fp16_rows"} if 'snippet(narrow.short ~ "_rows")' in text else set())


def test_every_marked_part_is_shown_and_every_part_that_is_shown_is_marked():
    assert {part.name for part in snippets()} | of_templates() == set(snippet_texts())


def test_names_of_parts_are_unique():
    begun = [name for path in SNIPPETS.iterdir() for name in re.findall(r"snippet: begin (\w+)", path.read_text())]
    assert sorted(begun) == sorted(snippet_texts())


def test_every_part_stands_in_a_program_that_is_built():
    sources = {path.name: path.read_text() for path in SNIPPETS.iterdir()}
    included = {name for text in sources.values() for name in re.findall(r'#include "(\S+)"', text)}
    assert set(sources) == included | {f"{name}.cu" for name in PROGRAMS}


@compiled
@pytest.mark.long
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_compiles_without_spills_and_reckons_right(name, tmp_path):
    program = build(name, tmp_path)
    spills = set(re.findall(r"(\d+) bytes spill", program.said))
    assert spills == {"0"}
    done = run(program.path, "without-device")
    assert (done.returncode, done.stdout) == (0, "")


@compiled
@pytest.mark.long
def test_registers_at_launch_are_those_that_the_snippet_names(tmp_path):
    said = build("setmaxnreg", tmp_path).said
    assert set(re.findall(r"Used (\d+) registers", said)) == {"168", "128"}


@compiled
@pytest.mark.long
def test_a_swizzle_by_the_wrong_bits_is_found_without_a_device(tmp_path):
    sources = shutil.copytree(SNIPPETS, tmp_path / "snippets")
    text = (sources / "wgmma.cuh").read_text()
    assert "at >> 3" in text
    (sources / "wgmma.cuh").write_text(text.replace("at >> 3", "at >> 4"))
    done = run(build("wgmma_shared", tmp_path, sources).path, "without-device")
    assert done.returncode == 1 and "swizzle 128: line" in done.stdout


def in_tables(width, line, piece):
    """Where a line's piece of 16 bytes lies, as the tables of the instruction set show it: by line modulo eight."""
    return line * width + 16 * (piece ^ {128: line % 8, 64: line % 8 // 2, 32: line % 8 // 4, 16: 0}[width])


@pytest.mark.parametrize("width", [128, 64, 32, 16])
def test_the_words_on_swizzles_give_the_places_of_the_tables(width):
    (shift,) = re.findall(r"return at \^ \(at >> (\d) & \(S - 16\)\);", snippet_texts()["wgmma_layouts"])
    for line in range(16):
        for piece in range(width // 16):
            at = line * width + piece * 16
            assert at ^ (at >> int(shift) & (width - 16)) == in_tables(width, line, piece)
