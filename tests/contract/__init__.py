"""The contract with users as data, and tests that hold the code to it.

`data` holds a file for each subject; `records` holds files of an earlier version that must open. `python -m
tests.contract --write` writes the data again from the code. `data/renames.toml` and `data/exits.toml` are edited by
hand.

A rename is one line in `data/renames.toml`, in the table of its subject: the old address, then the new name. An address
is `SECTION: NAME` as the data has them, `*: NAME` for that name in every section, or `SECTION` for a whole section. The
old name must work for one more version and warn; the tests check both. Where it can carry no warning (keys of JSON,
routes, metrics, fields of records on disk), old and new stand side by side.
"""
