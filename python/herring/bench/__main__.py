"""Entry point of ``python -m herring.bench``."""

import sys

from herring.bench.cli import main

sys.exit(main())
