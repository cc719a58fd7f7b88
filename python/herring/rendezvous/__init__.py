"""How a process finds its job: who it is, where the others are, and what proves that it belongs."""
