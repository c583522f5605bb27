import pytest

from kernelwright.sandbox.build import KEPT_CHARACTERS
from kernelwright.sandbox.logs import build_reason, names_an_error, trim_build_log, trim_traceback
from kernelwright_child.wire import failure

GCC = """RuntimeError: Error building extension 'x': [1/2] g++ -MMD -MF main.o.d -DTORCH_EXTENSION_NAME=x
FAILED: [code=1] main.o
g++ -MMD -MF main.o.d -DTORCH_EXTENSION_NAME=x
/tmp/kernelwright-abc/build/x/main.cpp: In function 'void f()':
/tmp/kernelwright-abc/build/x/main.cpp:7:5: error: 'forwrd' was not declared in this scope; did you mean 'forward'?
    7 |     forwrd(x);
      |     ^~~~~~
      |     forward
ninja: build stopped: subcommand failed.
"""

TRACE = """Traceback (most recent call last):
  File "/home/u/site-packages/sandbox/child/worker.py", line 33, in serve
    answer = handlers[message["op"]](message, fds)
  File "/home/u/site-packages/torch/nn/modules/module.py", line 1751, in _call_impl
    return forward_call(*args)
  File "/tmp/kernelwright-abc/candidate.py", line 31, in forward
    return self.op.forward(x, None)
TypeError: forward(): incompatible function arguments.
"""


def test_the_log_starts_with_the_error_and_its_source_line_and_has_no_command_lines():
    assert build_reason(GCC).startswith("main.cpp:7:5: error: 'forwrd'")
    assert trim_build_log(GCC).splitlines()[:2] == [build_reason(GCC), "    7 |     forwrd(x);"]
    assert "-DTORCH_EXTENSION_NAME" not in trim_build_log(GCC)


LACKING = "/usr/bin/ld: cannot find -lfast: No such file or directory"


@pytest.mark.parametrize(
    ("log", "end"),
    [
        (
            "ld: in function `f':\nmain.cpp:(.text+0x5): undefined reference to `g()'\ncollect2: error: ld returned 1",
            " to `g()'",
        ),
        (f"{LACKING}\ncollect2: error: ld returned 1 exit status", LACKING),
        ("one\nCUDA_HOME is not set", "CUDA_HOME is not set"),
        ("", "without a word"),
    ],
    ids=["a linker error", "a library that is not there", "the last line where no error is marked", "nothing"],
)
def test_the_line_that_decides_is_the_reason(log, end):
    assert build_reason(log).endswith(end)


def test_a_long_log_is_cut_in_the_middle():
    log = "\n".join(f"a.cpp:{n}:1: error: number {n}" for n in range(2000))
    trimmed = trim_build_log(log)
    assert len(trimmed) < KEPT_CHARACTERS + 200
    assert "number 0" in trimmed and "number 1999" in trimmed and "left out" in trimmed


def test_a_traceback_keeps_the_candidates_own_frames_and_the_exception():
    assert trim_traceback(TRACE).splitlines() == [
        "Traceback (most recent call last):",
        '  File "candidate.py", line 31, in forward',
        "    return self.op.forward(x, None)",
        "TypeError: forward(): incompatible function arguments.",
    ]


def test_a_log_without_the_compilers_words_is_told_from_one_with_them():
    assert names_an_error(GCC)
    assert not names_an_error("Error building extension")


def test_pages_of_values_do_not_hide_the_argument_at_fault():
    error = TypeError("f(): incompatible function arguments. Invoked with: tensor([[1., 2.],\n [3., 4.]]), None, 3")
    assert failure(error)["error"].endswith(": tensor(...), None, 3")
