"""Tells a process its place in its job, where other processes are, and how it proves membership."""
