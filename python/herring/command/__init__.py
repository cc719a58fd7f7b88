"""The command line: each module has the options of a command, and does what the command does."""
