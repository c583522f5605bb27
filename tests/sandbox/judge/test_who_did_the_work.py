"""Whose code computes, as an observed call of a built candidate tells: a kernel that does nothing is no work."""

import pytest

from kernelwright.sandbox.judge.judging import Judge
from kernelwright.sandbox.verdict.verdicts import Candidate
from tests.sandbox.conftest import QUICK
from tests.sandbox.judge.test_accuracy import PROBLEM, SOURCE

pytestmark = [pytest.mark.slow, pytest.mark.long]
LARGE = SOURCE.format(result="a @ b").replace("64, 128", "384, 512").replace("128, 72", "512, 384")
CANDIDATE = """
import torch
from torch.utils.cpp_extension import load_inline

TEXT = '''
#include <torch/extension.h>
void touch(torch::Tensor x) { x.data_ptr<float>()[0] += 0.0f; }
torch::Tensor product(torch::Tensor a, torch::Tensor b) {
    auto out = torch::zeros({a.size(0), b.size(1)}, a.options());
    const float *p = a.data_ptr<float>(), *q = b.data_ptr<float>();
    float *r = out.data_ptr<float>();
    const int n = a.size(0), k = a.size(1), m = b.size(1);
    for (int i = 0; i < n; i++)
        for (int l = 0; l < k; l++)
            for (int j = 0; j < m; j++) r[i * m + j] += p[i * k + l] * q[l * m + j];
    return out;
}
'''
OWN = load_inline(name="own", cpp_sources=[TEXT], functions=["touch", "product"], extra_cflags=["-O3"])

class ModelNew(torch.nn.Module):
    def forward(self, a, b):
"""
DECOY = "        y = torch.matmul(a, b)\n        OWN.touch(y)\n        return y\n"
HONEST = "        return OWN.product(a, b)\n"


def test_a_decoy_beside_a_library_call_is_no_work_and_a_kernel_that_computes_is():
    problem = PROBLEM.model_copy(update={"source": LARGE})
    with Judge(problem, QUICK.model_copy(update={"worker_pairs": 1, "import_timeout_s": 200})) as judge:
        verdicts = [judge.judge(Candidate(source=CANDIDATE + forward)) for forward in (DECOY, HONEST)]
    assert [verdict.outcome for verdict in verdicts] == ["passed", "passed"]
    assert [verdict.evidence.authenticity.label for verdict in verdicts] == ["library_only", "custom"]
