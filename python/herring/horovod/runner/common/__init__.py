"""Helpers of ``horovod.runner.common``."""
