"""Starts the processes of a job on this host and on others, supervises them, and ends them."""
