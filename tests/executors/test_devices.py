"""Which cores a device's judge has."""

import os

from evals.executors.devices import shared_cores
from evals.executors.order import Order


def test_the_judges_of_several_gpus_have_cores_of_their_own():
    assert shared_cores(tuple(range(8)), 4) == [(0, 1), (2, 3), (4, 5), (6, 7)]


def test_with_fewer_cores_than_gpus_each_judge_has_them_all():
    assert shared_cores((0, 1), 4) == [(0, 1)] * 4


def test_a_worker_without_a_device_keeps_to_the_cores_that_were_chosen():
    first = min(os.sched_getaffinity(0))
    settings = Order(chosen={"cores": [first], "min_pairs": 4}).settings()
    assert (settings.cores, settings.threads, settings.min_pairs) == ((first,), 1, 4)
