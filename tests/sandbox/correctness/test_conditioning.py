import pytest
import torch

from kernelwright.problems import Tolerance
from kernelwright.sandbox.correctness.compare import ExactCase, mismatch, mismatch_shaken, shake
from kernelwright.sandbox.tensors import RawTensor, ShownBytes, Values
from tests.support.tensors import packed

ROWS, COLUMNS = 256, 1000


def alternating():
    """Every other sign changed, as one of the families has it."""
    x = torch.rand(ROWS, COLUMNS, generator=torch.Generator().manual_seed(3))
    x.view(-1)[::2].neg_()
    return x


def scaled_and_summed(x, total):
    scale = torch.linspace(0.1, 1, COLUMNS, dtype=x.dtype)
    return x * scale + total


def exact(inputs):
    x = inputs.tensors[0].tensor().double()
    return packed(scaled_and_summed(x, x.sum(1, keepdim=True)))


def strided_sum(x):
    """As blocks of 256 threads add: elements of one sign first, so that large sums cancel at the very end."""
    apart = torch.nn.functional.pad(x, (0, 1024 - COLUMNS)).view(ROWS, 4, 256)
    sums = apart[:, 0] + apart[:, 1] + apart[:, 2] + apart[:, 3]
    sums = sums.view(ROWS, 8, 32)
    for offset in (16, 8, 4, 2, 1):
        sums = sums + sums[:, :, torch.arange(32) ^ offset]
    total = torch.zeros(ROWS)
    for warp in range(8):
        total = total + sums[:, warp, 0]
    return total.unsqueeze(1)


def reference(x):
    """Neighbours first, which cancel at once."""
    pairs = x.view(ROWS, -1, 2).sum(-1)
    return scaled_and_summed(x, pairs.sum(1, keepdim=True))


def judged(x, output):
    return mismatch_shaken(packed(output), ExactCase(packed(x), exact), packed(reference(x)), Tolerance())


def test_a_sum_whose_large_terms_cancel_last_is_right():
    x = alternating()
    output = scaled_and_summed(x, strided_sum(x))
    plain = mismatch(packed(output), exact(packed(x)), packed(reference(x)), Tolerance())
    assert plain and "for their own magnitude" in plain.reason
    assert judged(x, output) is None


@pytest.mark.parametrize("bits", [10, 7])
def test_lower_precision_stays_wrong_where_terms_cancel(bits):
    x = alternating()
    short = x.view(torch.int32).bitwise_and(-1 << (23 - bits)).view(torch.float32)
    assert judged(x, scaled_and_summed(x, strided_sum(short)))


def test_one_small_row_that_is_left_out_stays_wrong():
    x = alternating()
    output = scaled_and_summed(x, strided_sum(x))
    smallest = int(output.norm(dim=1).argmin())
    output[smallest] *= 0.99
    assert judged(x, output)


def test_what_has_the_wrong_form_is_not_asked_about_again():
    x = alternating()
    asked = []
    wrong = mismatch_shaken(
        packed(reference(x)[:, :-1]),
        ExactCase(packed(x), lambda inputs: asked.append(1) or exact(inputs)),
        packed(reference(x)),
        Tolerance(),
    )
    assert "has shape" in wrong.reason
    assert len(asked) == 1


def test_shaking_moves_elements_by_up_to_the_units_and_leaves_integers():
    x, index = torch.rand(1000) + 0.5, torch.arange(5)
    moved = shake(packed(x, index), 64)
    relative = (moved.tensors[0].tensor() / x - 1).abs() / torch.finfo(torch.float32).eps
    assert 60 < relative.max() < 66 and 28 < relative.mean() < 36
    assert torch.equal(moved.tensors[1].tensor(), index)


def test_one_element_that_hardly_any_rounding_leaves_where_it_is_excuses_no_other():
    generator = torch.Generator().manual_seed(1)
    a, b, c = (torch.randn(1, 20_000, generator=generator) for _ in range(3))
    d = torch.randn(1, 20_000, generator=generator)
    c[0, 7] = d[0, 7] * (1 + 1e-4)

    def slopes(inputs):
        a, b, c, d = (raw.tensor().double() for raw in inputs.tensors)
        return packed(a * b / (c - d))

    inputs, near = packed(a, b, c, d), a * b / (c - d)
    rounded = (a.bfloat16() * b.bfloat16()).float() / (c - d)
    asked = ExactCase(inputs, slopes)
    assert mismatch_shaken(packed(rounded), asked, packed(near), Tolerance())
    off = near.clone()
    off[0, 7] *= 1 + 1e-3  # what a different rounding of c and d does there
    assert mismatch(packed(off), slopes(inputs), packed(near), Tolerance(factor=1e-3, reason="to see the other check"))
    assert not any(mismatch_shaken(packed(off), asked, packed(near), Tolerance()) for _ in range(50))


def showing():
    """The same results, all shown in one place: each is gone when the next is asked for."""
    place = torch.empty(ROWS * COLUMNS * 8, dtype=torch.uint8)

    def answer(inputs):
        (found,) = exact(inputs).tensors
        place.copy_(torch.frombuffer(found.data, dtype=torch.uint8))
        return Values({"t": 0}, (RawTensor("float64", found.shape, ShownBytes(place)),))

    return answer


def test_results_that_are_shown_in_one_place_lead_to_the_same_verdict():
    x = alternating()
    for output in (scaled_and_summed(x, strided_sum(x)), reference(x) * 1.01):
        asked = ExactCase(packed(x), showing())
        found = mismatch_shaken(packed(output), asked, packed(reference(x)), Tolerance())
        assert (found is None) == (judged(x, output) is None)


def test_what_was_shown_first_is_kept_before_another_is_asked_for():
    x = alternating()
    shown, answers = showing(), []

    def asked(inputs):
        answers.append(shown(inputs))
        return answers[-1]

    mismatch_shaken(packed(reference(x) * 1.01), ExactCase(packed(x), asked), packed(reference(x)), Tolerance())
    assert torch.equal(answers[0].tensors[0].tensor(), exact(packed(x)).tensors[0].tensor())


@pytest.mark.parametrize(("off", "times"), [(1.5, 2), (1 + 2e-4, 7)])
def test_of_what_is_wrong_beyond_doubt_it_is_asked_once_how_far_rounding_moves_it(off, times):
    x, asked = torch.rand(ROWS, COLUMNS) + 1, []
    case = ExactCase(packed(x), lambda inputs: asked.append(1) or exact(inputs))
    assert mismatch_shaken(packed(reference(x) * off), case, packed(reference(x)), Tolerance())
    assert len(asked) == times
    assert mismatch_shaken(packed(reference(x) * off), case, packed(reference(x)), Tolerance())
    assert len(asked) == times + 1  # another result on these inputs needs no further draws


@pytest.mark.long
def test_how_far_one_element_moves_by_chance_decides_nothing_early():
    """Elements of one size each, of which many hardly move in a single draw: no candidate that is right ends there."""
    x = alternating()
    output = scaled_and_summed(x, strided_sum(x))
    assert not any(judged(x, output) for _ in range(20))
