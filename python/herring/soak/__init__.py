"""What `herring soak` does: trains while servers die, and compares it with a twin in peace."""
