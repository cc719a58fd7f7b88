"""`herring run` for a soak, whose servers die more often than a launcher expects.

`herring run` pauses before it starts a server again that has died soon after its start. In a soak
the reason of each death is known, so nothing is won by a pause.
"""

from __future__ import annotations

import sys

from herring.command.cli import main
from herring.launch import restarts

if __name__ == "__main__":
    restarts.HAS_SERVED = restarts.LONG_LIFE = 0.0
    sys.exit(main(["run", *sys.argv[1:]]))
