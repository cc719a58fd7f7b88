"""The planned operation, `PlannedReduction`."""

from herring.arrays.planned import PlannedReduction

__all__ = ["PlannedReduction"]
