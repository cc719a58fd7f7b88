"""Training that goes on when workers die, and takes workers that come.

    import herring.elastic

    state = herring.torch.State(model=model, optimizer=optimizer, sampler=sampler, epoch=0)

    @herring.elastic.run
    def train(state): ...

See docs/how-to/elastic.md.
"""

from herring.elastic.running import generation, leave, run
from herring.elastic.state import State

__all__ = ["State", "generation", "leave", "run"]
