"""Makes and opens credentials of MUNGE, which Slurm itself uses, by libmunge through ctypes.

A credential is a text with a few bytes, encrypted under the cluster's key, which only the munged
daemons on the hosts have. It says which user made it, and only one user may open it; munged asks
the kernel who is asking. A credential can therefore go over any network.
"""

from __future__ import annotations

import ctypes
import os
from functools import lru_cache
from typing import Any

from herring.errors import ConfigurationError

_SUCCESS = 0
_SOCKET_ERROR = 6
# Options and values of <munge.h>. Their numbers are part of its binary interface.
_CIPHER, _SOCKET, _UID = 0, 8, 9
_AES128 = 4


class MungeError(Exception):
    """A credential could not be made or opened."""


def encode(payload: bytes, socket: str = "") -> bytes:
    """Returns a credential with `payload` that only this user can open.

    Args:
        payload: At most a few kilobytes.
        socket: The socket of munged; empty means its usual socket.

    Raises:
        ConfigurationError: libmunge is not installed here, or munged does not answer.
        MungeError: munged refuses.
    """
    library = _library()
    context = _context(library, socket)
    text = ctypes.c_void_p()
    try:
        # The cipher is set whatever this munged's default is, because a secret must be encrypted.
        for option, value in ((_CIPHER, _AES128), (_UID, os.getuid())):
            _check(library, library.munge_ctx_set(context, option, ctypes.c_int(value)), socket)
        status = library.munge_encode(ctypes.byref(text), context, payload, len(payload))
        _check(library, status, socket)
        return ctypes.string_at(text)
    finally:
        _free(text)
        library.munge_ctx_destroy(context)


def decode(credential: bytes, socket: str = "") -> bytes:
    """Returns the payload of a credential of this user. A host opens each credential once.

    Args:
        credential: A credential from another process, perhaps from a stranger's.
        socket: The socket of munged; empty means its usual socket.

    Raises:
        ConfigurationError: libmunge is not installed here, or munged does not answer.
        MungeError: It is not a credential, has expired, was opened before, is for another user, or
            was made by another user.
    """
    library = _library()
    context = _context(library, socket)
    data, length, uid = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_uint()
    try:
        status = library.munge_decode(
            credential, context, ctypes.byref(data), ctypes.byref(length), ctypes.byref(uid), None
        )
        _check(library, status, socket)
        payload = ctypes.string_at(data, length.value) if length.value else b""
    finally:
        _free(data)
        library.munge_ctx_destroy(context)
    if uid.value != os.getuid():
        raise MungeError(f"it was made by user {uid.value}, not by user {os.getuid()}")
    return payload


@lru_cache(maxsize=1)
def _library() -> Any:
    try:
        library = ctypes.CDLL("libmunge.so.2")
    except OSError:
        raise _unavailable("libmunge.so.2 is not installed here") from None
    library.munge_ctx_create.restype = ctypes.c_void_p
    library.munge_ctx_destroy.argtypes = [ctypes.c_void_p]
    library.munge_ctx_destroy.restype = None
    # munge_ctx_set is variadic, so only its first two arguments have types here.
    library.munge_ctx_set.argtypes = [ctypes.c_void_p, ctypes.c_int]
    library.munge_encode.argtypes = [
        ctypes.POINTER(ctypes.c_void_p),
        ctypes.c_void_p,
        ctypes.c_char_p,
        ctypes.c_int,
    ]
    library.munge_decode.argtypes = [
        ctypes.c_char_p,
        ctypes.c_void_p,
        ctypes.POINTER(ctypes.c_void_p),
        ctypes.POINTER(ctypes.c_int),
        ctypes.POINTER(ctypes.c_uint),
        ctypes.c_void_p,
    ]
    library.munge_strerror.restype = ctypes.c_char_p
    return library


def _context(library: Any, socket: str) -> ctypes.c_void_p:
    context = ctypes.c_void_p(library.munge_ctx_create())
    if not context:
        raise MemoryError("munge_ctx_create")
    if socket:
        value = ctypes.c_char_p(os.fsencode(socket))
        status = library.munge_ctx_set(context, _SOCKET, value)
        if status != _SUCCESS:
            library.munge_ctx_destroy(context)
            _check(library, status, socket)
    return context


def _check(library: Any, status: int, socket: str) -> None:
    if status == _SUCCESS:
        return
    text = library.munge_strerror(status).decode(errors="replace")
    if status == _SOCKET_ERROR:
        raise _unavailable(f"munged does not answer at {socket or 'its usual socket'} ({text})")
    raise MungeError(text)


def _free(memory: ctypes.c_void_p) -> None:
    if memory:
        free = ctypes.CDLL(None).free
        free.argtypes = [ctypes.c_void_p]
        free.restype = None
        free(memory)


def _unavailable(reason: str) -> ConfigurationError:
    return ConfigurationError(
        f"HERRING_SECRET_FILE is not set, and MUNGE cannot hand out the job's secret: {reason}; "
        "put 'export HERRING_SECRET=$(openssl rand -hex 32)' before srun, or write one file and "
        "set HERRING_SECRET_FILE to its path"
    )
