"""The planned operation: see `PlannedReduction`."""

from herring.arrays.planned import PlannedReduction

__all__ = ["PlannedReduction"]
