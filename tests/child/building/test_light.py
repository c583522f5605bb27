import time

import pytest

from kernelwright_child import compiling

RUN = "#include <torch/extension.h>\ntorch::Tensor run(torch::Tensor x) { return torch::relu(x); }\n"
BOUND = RUN + 'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {\nm.def("run", torch::wrap_pybind_function(run), "run");\n}\n'
BINDS_ITSELF = RUN + 'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", &run, py::arg("x")); }\n'


@pytest.fixture
def header(tmp_path):
    (tmp_path / "ATen" / "ops").mkdir(parents=True)
    for name in ("relu", "gelu", "relu_native"):
        (tmp_path / "ATen" / "ops" / f"{name}.h").touch()
    return lambda text: compiling.header_for(text, str(tmp_path), frozenset({"TORCH_LIBRARY", "PYBIND11_TYPE_CASTER"}))


def test_the_operators_that_a_source_names_are_in_its_header_and_no_others(header):
    text = header(RUN + "// relu_native")
    assert "<ATen/ops/relu.h>" in text
    assert "gelu" not in text and "native" not in text and "pybind" not in text


def test_what_torch_binds_gets_what_stands_in_for_pybind11_and_what_binds_itself_gets_pybind11(header):
    assert "kernelwright/module.h" in header(BOUND) and "pybind" not in header(BOUND)
    assert compiling.glue_of(BOUND) == ("binding.o", "factories.o")
    assert "torch/csrc/utils/pybind.h" in header(BINDS_ITSELF) and "module.h" not in header(BINDS_ITSELF)
    assert compiling.glue_of(BINDS_ITSELF) == ()


def test_a_kernel_of_cuda_as_load_inline_writes_it_gets_one(header):
    source = "#include <torch/types.h>\n#include <cuda.h>\n" + RUN + "__global__ void k() {}"
    assert header(source) is not None
    assert compiling.glue_of(source) == ("factories.o",)


@pytest.mark.parametrize(
    "text",
    [
        "#include <vector>\n" + RUN,
        "#define X\n" + RUN,
        RUN + "torch::nn::Linear l(1, 2);",
        RUN + "namespace torch { int own; }",
        RUN + "using namespace at;",
        RUN + "TORCH_LIBRARY(x, m) {}",
        RUN + "#ifdef TORCH_LIBRARY\n#endif",
        RUN + '#include "own.h"',
        RUN + "#include OWN",
        RUN + "int KERNELWRIGHT_INSIDE;",
        "int a;",
    ],
)
def test_what_the_light_header_lacks_could_clash_with_or_can_not_see_gets_the_stock_one(header, text):
    assert header(text) is None


@pytest.mark.parametrize(
    "more", ["using namespace std;", "namespace py = pybind11;", "using namespace torch::indexing;"]
)
def test_other_names_for_namespaces_are_no_hindrance(header, more):
    assert header(RUN + more) is not None


def test_many_comments_before_the_header_are_read_at_once(header):
    start = time.perf_counter()
    comments = "/* a */\n" * 20_000
    assert header(comments + RUN) is not None
    assert header(f"{comments}#include <vector>") is None
    assert header("/* never closed #include <torch/extension.h>") is None
    assert header("/**/ // one\n /* * ** */" + RUN) is not None
    assert time.perf_counter() - start < 5
