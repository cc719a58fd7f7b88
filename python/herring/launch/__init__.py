"""The `herring` command: it starts jobs, here and on other hosts, and dedicated servers."""
