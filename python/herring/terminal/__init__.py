"""What all commands share: one parser with its errors, and a status line."""
