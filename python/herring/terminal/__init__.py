"""What all commands share: one parser with its errors, and the printing of reports."""
