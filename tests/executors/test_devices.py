"""Which cores a device's judge has."""

from evals.executors.devices import shared_cores


def test_the_judges_of_several_gpus_have_cores_of_their_own():
    assert shared_cores(tuple(range(8)), 4) == [(0, 1), (2, 3), (4, 5), (6, 7)]


def test_with_fewer_cores_than_gpus_each_judge_has_them_all():
    assert shared_cores((0, 1), 4) == [(0, 1)] * 4
