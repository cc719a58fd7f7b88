"""Breakages of tools/break_it.py that no test can see, each with a sentence that says why.

No tests run for them. They are found by the text of the line, so an entry goes when its line does.
"""

from __future__ import annotations

__all__ = ["UNSEEN"]

# By path, line as it was, and line as it is.
UNSEEN = {
    (
        "python/herring/launch/ending.py",
        "_signalled_at: float = 0.0",
        "_signalled_at: float = 1.0",
    ): "It is read only after the first signal, which sets it.",
    (
        "python/herring/launch/agent.py",
        "self._outbox.close()",
        "pass",
    ): "The process ends next, and that closes the outbox.",
    (
        "src/base/fields.cc",
        "if ((static_cast<unsigned char>(c) < 0x20 && !breaks) || c == 0x7f) c = ' ';",
        "if ((static_cast<unsigned char>(c) <= 0x20 && !breaks) || c == 0x7f) c = ' ';",
    ): "0x20 is the blank, which is replaced by itself.",
    (
        "src/transport/tcp/connector.cc",
        "if (left_ > 0 && !waiting_.why.ok()) return waiting_.why;",
        "if (left_ >= 0 && !waiting_.why.ok()) return waiting_.why;",
    ): "It needs a set-up that is given up in the turn of the loop that makes the last connection."
    " The job fails then in any case.",
}
