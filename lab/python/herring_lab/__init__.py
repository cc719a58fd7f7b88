"""Herring's laboratory: emulated clusters, measurements and simulation.

Nothing that trains needs this package. It uses ``herring``, which never uses it but for what a user
asks for by name: the commands ``herring lab``, ``herring study`` and ``herring simulate``, and
``python -m herring.bench --peer``.

- ``emulate``: hosts made out of Linux network namespaces, with links of a chosen rate and delay.
- ``simulate``: jobs in virtual time, on hosts and links that nobody has yet.
- ``study``: the measurements of the papers, repeated on emulated hosts.
- ``competitors``: the libraries that Herring is measured against.
- ``report``: tables, JSON and plots.
"""
