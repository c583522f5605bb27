"""The search on a benchmark that is not ours: what was chosen, the run's record, its page. `python -m bench.results`.

`selection` fixes the problems beforehand; `keeping` takes a run's record into the folder `results`, which is kept in
the repository; `again` judges what was kept a second time; `figures`, `pictures` and `page` make docs/results.md of
that folder alone. Nothing here holds or writes a text of the benchmark.
"""
