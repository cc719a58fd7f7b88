"""What is the same for all frameworks: errors, ranks, process sets."""
