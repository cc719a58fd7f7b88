"""Elastic training with PyTorch, as in Horovod. See docs/horovod.md."""

from herring.horovod.common.elastic import ObjectState, State, run
from herring.horovod.torch.elastic.sampler import ElasticSampler
from herring.horovod.torch.elastic.state import TorchState

__all__ = ["ElasticSampler", "ObjectState", "State", "TorchState", "run"]
