"""Herring's laboratory: emulated clusters, measurements and simulation.

Training does not need this package. ``herring`` imports it only for the
commands ``herring lab``, ``herring study`` and ``herring simulate``, and for
``python -m herring.bench --peer``.

- ``emulate`` makes hosts out of Linux network namespaces, with links of a chosen rate and delay.
- ``simulate`` runs jobs in virtual time, on hosts and links that need not exist.
- ``study`` repeats the measurements of the papers on emulated hosts.
- ``competitors`` adapts the libraries that Herring is measured against.
- ``report`` writes tables, JSON and plots.
"""
