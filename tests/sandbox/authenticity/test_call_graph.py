import pytest

from kernelwright.sandbox.authenticity import library_calls
from kernelwright.sandbox.authenticity.evidence import Observed, judge_authenticity, read_authenticity, refusal
from kernelwright.sandbox.authenticity.library_calls import MOST_NODES, Unreadable, reach
from tests.sandbox.authenticity.test_authenticity import asked

HEAD = "import ctypes, os, subprocess, torch\nfrom torch.utils.cpp_extension import load_inline\n"
FORWARD = "class ModelNew:\n  def forward(self, x): return RUN(x)\n"


def test_a_long_chain_of_attributes_is_read():
    chain = "class ModelNew:\n  def forward(s, x):\n    z = x" + ".T" * 1500 + "\n    return torch.cumsum(x, 1)"
    assert read_authenticity(chain).label == "library_only"


def test_a_native_name_is_followed_through_thousands_of_assignments_once_each():
    links = 4000
    text = "".join(f"v{i} = v{i + 1}\n" for i in range(links)) + f"v{links} = load_inline('')\n"
    lookups = []

    class Counted(dict):
        def pop(self, key, default=()):
            lookups.append(key)
            return super().pop(key, default)

    assert len(reach(text).own) == links + 1
    leads = Counted({f"v{i + 1}": [[f"v{i}"]] for i in range(links)})
    assert len(library_calls._spread([f"v{links}"], leads)) == links + 1
    assert len(lookups) == links + 1


@pytest.mark.slow
def test_many_functions_of_one_name_are_each_read_once():
    text = "class ModelNew:\n  def forward(s, x): return a\n" + "def a(): return a\n" * 3000
    nodes = reach(text).nodes
    assert len(nodes) == len({id(node) for node in nodes})


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    ["x = " + "-" * 5000 + "1", "x = " + "(" * 150 + "1", pytest.param("x = 1\n" * MOST_NODES, marks=pytest.mark.long)],
)
def test_a_source_that_can_not_be_read_is_unknown_and_refused_where_only_own_kernels_count(text):
    with pytest.raises(Unreadable):
        reach(text)
    assert read_authenticity(text).label == "unknown"
    assert judge_authenticity(text, Observed()).label == "unknown"
    assert "read" in refusal(asked("custom-only"), text, Observed())


OWN = {
    "one that load_inline has built": "RUN = ctypes.CDLL(load_inline('')).run\n",
    "one whose path goes by another name": "P = load_inline('')\nQ = str(P)\nRUN = ctypes.CDLL(Q)['run']\n",
    "one that a compiler has built": "subprocess.run(['cc', '-olibmine.so'])\nRUN = ctypes.CDLL('libmine.so').run\n",
    "one beside what is built": "load_inline('')\nRUN = ctypes.CDLL(os.path.join('build', 'x.so')).run\n",
}
FOREIGN = {
    "torch's, by its folder": "RUN = ctypes.CDLL(os.path.join(os.path.dirname(torch.__file__), 'x.so')).run\n",
    "torch's, beside a kernel": "load_inline('')\nD = torch.__path__[0]\nRUN = ctypes.CDLL(D + '/lib/x').run\n",
    "torch's, by its name": "load_inline('')\nRUN = ctypes.CDLL('libtorch_cpu.so').run\n",
    "the process itself": "load_inline('')\nRUN = ctypes.CDLL(None).run\n",
    "any where nothing is built": "RUN = ctypes.CDLL('/tmp/x.so').run\n",
}


@pytest.mark.parametrize("name", OWN)
def test_a_library_that_the_candidate_has_built_is_its_own(name):
    assert reach(HEAD + OWN[name] + FORWARD).own_calls


@pytest.mark.parametrize("name", FOREIGN)
def test_a_library_that_was_there_before_is_not(name):
    assert not reach(HEAD + FOREIGN[name] + FORWARD).own_calls
