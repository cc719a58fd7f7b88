"""Parts that all frameworks share: errors, ranks, process sets and the start of collectives."""
