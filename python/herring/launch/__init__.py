"""How a job starts: rank detection, the local launcher and the `herring` command."""
