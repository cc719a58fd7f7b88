"""Kernels of the stand-in for CUDA's driver that run until a program lets them end."""

import ctypes

from gpu_job import GpuArray, driver


class Gate:
    """Holds up streams of this process until it is opened."""

    def __init__(self) -> None:
        self._word = ctypes.c_uint32(0)
        _words.append(self._word)  # Kernels may read it until the process ends.

    def hold(self, array: GpuArray) -> None:
        """Queues a kernel in the array's stream that runs until the gate is open."""
        driver._library.standin_hold(ctypes.c_void_p(array.stream), ctypes.byref(self._word))

    def open(self) -> None:
        self._word.value = 1


_words: list[ctypes.c_uint32] = []
