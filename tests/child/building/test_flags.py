import pytest

from kernelwright_child import compiling

TORCHS = ["-DTORCH_API_INCLUDE_EXTENSION_H", "-fPIC", "-std=c++20", "-DTORCH_EXTENSION_NAME=ext"]


@pytest.mark.parametrize(
    "words",
    [
        ["-MMD", "-MF", "main.o.d", "-c", "main.cpp", "-o", "main.o"],
        ["-O3", "-march=native", "-fopenmp", "-ffast-math", "-funroll-loops"],
        ["-Wall", "-Werror", "-DFACTOR=3", "-D", "NDEBUG", "-lm", "-g"],
        ["--use_fast_math", "-gencode=arch=compute_90,code=sm_90", "--compiler-options", "-fPIC"],
        ['-DPYBIND11_COMPILER_TYPE="_gcc"'],
    ],
)
def test_ordinary_flags_allow_the_light_header(words):
    assert compiling.allow_light([*TORCHS, *words])


@pytest.mark.parametrize(
    "words",
    [
        ["@file"],
        ["-include", "other.h"],
        ["-x", "c"],
        ["-m32"],
        ["-fpack-struct"],
        ["-fshort-enums"],
        ["-D_GLIBCXX_USE_CXX11_ABI=0"],
        ["-D", "_GLIBCXX_DEBUG"],
        ["-DAT_PER_OPERATOR_HEADERS"],
        ["-DTORCH_STABLE_ONLY"],
        ["-UC10_MOBILE"],
    ],
)
def test_what_changes_layouts_or_what_torchs_headers_say_forbids_it(words):
    assert not compiling.allow_light([*TORCHS, *words])


def test_an_include_folder_with_headers_of_torchs_names_forbids_it(tmp_path):
    assert compiling.allow_light([*TORCHS, f"-I{tmp_path}"])
    (tmp_path / "torch").mkdir()
    assert not compiling.allow_light([*TORCHS, f"-I{tmp_path}"])
    assert not compiling.allow_light([*TORCHS, "-isystem", str(tmp_path)])
    assert compiling.allow_light([*TORCHS, "-isystem", str(tmp_path)], (str(tmp_path),))


@pytest.mark.parametrize(
    ("words", "whether"), [(["-O3"], True), (["-O0"], False), (["-O2", "-O0"], False), ([], False)]
)
def test_the_last_word_on_optimisation_decides(words, whether):
    assert compiling.are_optimised(words) is whether
