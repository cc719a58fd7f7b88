"""The hook that `import torch` calls through the entry point ``torch.backends``.

The hook only registers the backend's name. ``init_process_group("herring")`` then works without an
earlier import of `herring.torch`, for example in workers that a framework starts.
"""

from __future__ import annotations

from typing import Any


def register() -> None:
    """Registers "herring" and "herring://" with torch.distributed; loads nothing, never raises."""
    try:
        import torch.distributed as dist
        from torch.distributed.rendezvous import register_rendezvous_handler

        if dist.is_available() and not hasattr(dist.Backend, "HERRING"):
            dist.Backend.register_backend(
                "herring", _create, extended_api=True, devices=["cpu", "cuda"]
            )
            register_rendezvous_handler("herring", _rendezvous)
    except Exception:  # whatever fails here, `import torch` must succeed
        return


def _create(options: Any, settings: Any = None) -> Any:
    from herring.torch.backend import create

    return create(options, settings)


def _rendezvous(url: str, **options: Any) -> Any:
    from herring.torch.backend.joining import rendezvous

    return rendezvous(url, **options)
