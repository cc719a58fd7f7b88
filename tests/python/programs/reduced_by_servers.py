"""Tests all-reduces by servers for every dtype and operator."""

import herring
from reductions import check_reductions

herring.init()
# Counts cover arrays small enough to travel with an announcement, larger ones, and odd tails.
check_reductions((0, 1, 3, 1000, 40_001, 300_007))
