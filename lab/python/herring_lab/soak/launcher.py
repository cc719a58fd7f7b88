"""`herring run` for a soak, whose servers die more often than a launcher expects.

`herring run` pauses before it starts a server again that has died soon after its start. In a soak
the reason of each death is known, so nothing is won by a pause.
"""

from __future__ import annotations

import sys

from herring.launch import restarts
from herring.launch.cli import main

if __name__ == "__main__":
    restarts.HAS_SERVED = restarts.LONG_LIFE = 0.0
    sys.exit(main(["run", *sys.argv[1:]]))
