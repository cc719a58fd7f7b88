"""Herring for arrays: a process's place in its job, groups, collectives, lists, planned rounds.

`herring` itself re-exports the public names of these modules. The framework adapters are built on
them.
"""
