"""Facts and texts for all other folders: versions, units, optional parts, what /proc tells."""
