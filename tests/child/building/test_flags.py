import time

import pytest

from kernelwright_child.building import flags

TORCHS = ["-DTORCH_API_INCLUDE_EXTENSION_H", "-fPIC", "-std=c++20"]


def test_names_outputs_warnings_libraries_and_own_macros_do_not_decide_over_a_header():
    words = ["-MMD", "-MF", "main.o.d", "-DTORCH_EXTENSION_NAME=ext", *TORCHS, "-Wall", "-DFACTOR=3", "-lm"]
    assert flags.relevant([*words, "-c", "main.cpp", "-o", "main.o"]) is not None
    assert set(TORCHS) <= set(flags.relevant([*words, "-O3"]))
    assert not {"-Wall", "-DFACTOR=3", "-lm"} & set(flags.relevant(words))


@pytest.mark.parametrize(
    "word",
    ["-fplugin=evil.so", "-B/tmp", "-specs=evil", "-wrapper", "@file", "-Wp,-include,x", "-Wa,@x", "-fno-such-flag"],
)
def test_a_flag_that_could_name_a_file_or_a_program_prepares_nothing(word):
    assert flags.relevant([*TORCHS, word]) is None
    assert not flags.is_harmless([word])


@pytest.mark.parametrize("word", ["-march=native -fplugin=x", "-O3\n-fplugin=x"])
def test_two_flags_in_one_word_prepare_nothing(word):
    assert flags.relevant([*TORCHS, word]) is None


def test_a_forced_include_prepares_nothing():
    assert flags.relevant([*TORCHS, "-include", "other.h"]) is None


def test_an_include_folder_with_headers_of_torchs_names_prepares_nothing(tmp_path):
    assert flags.relevant([*TORCHS, f"-I{tmp_path}"]) == TORCHS
    (tmp_path / "torch").mkdir()
    assert flags.relevant([*TORCHS, f"-I{tmp_path}"]) is None
    assert flags.relevant([*TORCHS, "-isystem", str(tmp_path)]) is None
    assert flags.relevant([*TORCHS, "-isystem", str(tmp_path)], (str(tmp_path),)) == TORCHS


def test_the_order_of_flags_matters_only_within_a_kind():
    assert flags.digest(["-O3", "-fPIC", "-march=native"]) == flags.digest(["-march=native", "-O3", "-fPIC"])
    assert flags.digest(["-ffast-math", "-fno-finite-math-only"]) != flags.digest(
        ["-fno-finite-math-only", "-ffast-math"]
    )


def test_levels_of_optimisation_have_headers_of_their_own():
    assert len({flags.digest([level]) for level in ("-O0", "-O1", "-O2", "-O3", "-Ofast")}) == 5


@pytest.mark.parametrize(
    ("text", "whether"),
    [
        ("#include <torch/extension.h>\n", True),
        ('// words\n/* more\n */  #  include "torch/extension.h"\n', True),
        ("#include <vector>\n#include <torch/extension.h>\n", False),
        ("#define X\n#include <torch/extension.h>\n", False),
        ("int a;", False),
    ],
)
def test_a_precompiled_header_can_only_be_the_first_thing_in_a_file(text, whether):
    assert flags.starts_with_extension_h(text) is whether


@pytest.mark.parametrize(
    "text",
    ["torch::nn::Linear l(1, 2);", "namespace torch { int own; }", "using namespace at;", "#include <torch/all.h>"],
)
def test_what_the_narrow_header_lacks_or_could_clash_with_needs_the_whole_one(text):
    assert flags.needs_whole_header(text)


def test_an_ordinary_source_does_not_need_the_whole_header():
    assert not flags.needs_whole_header("namespace py = pybind11; torch::Tensor f(at::Tensor x) { return x.sum(); }")


def test_many_comments_before_the_header_are_read_at_once():
    start = time.perf_counter()
    comments = "/* a */\n" * 20_000
    assert flags.starts_with_extension_h(f"{comments}#include <torch/extension.h>")
    assert not flags.starts_with_extension_h(f"{comments}#include <vector>")
    assert not flags.starts_with_extension_h("/* never closed #include <torch/extension.h>")
    assert flags.starts_with_extension_h("/**/ // one\n /* * ** */#include <torch/extension.h>")
    assert time.perf_counter() - start < 5
