"""The search on a foreign benchmark: what was chosen, the run's record, its page. `python -m bench results COMMAND`.

`keeping` fixes the problems beforehand and takes a run's record into the folder `results`, which is kept in the
repository; `again` judges what was kept a second time; `figures`, `pictures` and `page` make docs/results.md of that
folder alone. Nothing here holds or writes a text of the benchmark.
"""

from bench.measuring import Report


def run(*words: str) -> Report:
    """A search on a foreign benchmark: select, keep, pack, unpack, again, hazards, draw."""
    from bench.results.__main__ import app

    code = app(list(words), "python -m bench results", standalone_mode=False)
    return Report("", not code)
