"""Helpers of ``horovod.runner.util``."""
