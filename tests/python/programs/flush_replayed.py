"""Records series with flushes and replays each twice."""

import os

import herring
from flush_series import run
from herring.partial import Quorum

herring.init()

path, statistics = os.environ["RECORDING"], herring.RoundStatistics()
cases = [(1, 300, "solo"), (2, 50_000, "majority"), (5, 50_000, Quorum(1, staleness=2))]
then = [run(*case, statistics=statistics) for case in cases]
statistics.save(path)
for now in (herring.RoundStatistics(), herring.RoundStatistics()):
    again = [
        run(seed, elements, herring.Replay(path), statistics=now) for seed, elements, _ in cases
    ]
    assert again == then
    assert now.rounds == statistics.rounds and now.staleness == statistics.staleness
