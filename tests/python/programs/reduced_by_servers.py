"""All-reduces of every dtype and operator by servers."""

import herring
from reductions import check_reductions

herring.init()
# On both sides of what rides along with an announcement, and with odd tails.
check_reductions((0, 1, 3, 1000, 40_001, 300_007))
