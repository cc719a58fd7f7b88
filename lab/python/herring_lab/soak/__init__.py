"""Trains while servers or workers die, and compares every bit with a job without faults."""
