"""Herring on arrays: a process's place in its job, groups, collectives, lists, planned rounds.

`herring` itself hands all of it on; adapters for frameworks stand on these modules.
"""
