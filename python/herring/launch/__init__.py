"""The `herring` command: it starts jobs on this host and on others, and dedicated servers."""
