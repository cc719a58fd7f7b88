"""Helpers of ``horovod.runner.common.util``."""
