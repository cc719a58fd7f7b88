"""Which hosts measure the link between them in which round, so that none is in two pairs at once.

With up to 16 hosts every pair meets once. Of more rounds, 15 are drawn with a fixed seed.
"""

from __future__ import annotations

import random

#: The most rounds of a tournament.
MOST_ROUNDS = 15


def rounds_of(hosts: int) -> list[list[tuple[int, int]]]:
    """Returns the pairs of each round."""
    if hosts < 2:
        return []
    places: list[int | None] = [*range(hosts)]
    if hosts % 2:
        places.append(None)  # who meets nobody waits
    rounds = []
    # The circle method: the first place stays, the others move on by one.
    for _ in range(len(places) - 1):
        half = len(places) // 2
        pairs = zip(places[:half], reversed(places[half:]))
        rounds.append(
            [(one, other) for one, other in pairs if one is not None and other is not None]
        )
        places = [places[0], places[-1], *places[1:-1]]
    if len(rounds) > MOST_ROUNDS:
        # Every host meets another one in each round, and no two hosts meet twice.
        rounds = random.Random(hosts).sample(rounds, MOST_ROUNDS)
    return rounds


def sample_of(hosts: int, host: int, most: int = MOST_ROUNDS) -> list[int]:
    """Returns the hosts to which one host measures round trips and losses.

    The list begins with the host's successor, so that hosts do not all turn to the same one at the
    same time. The first host is always in it, because its clock is the reference.

    Args:
        host: The host that measures.
        most: The most hosts in the list, besides the first host.
    """
    others = [(host + step) % hosts for step in range(1, hosts)]
    if len(others) <= most:
        return others
    chosen = set(random.Random(host).sample(others, most)) | ({0} - {host})
    return [other for other in others if other in chosen]
