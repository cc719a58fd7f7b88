"""What `herring soak` does: a training job whose servers die, compared with a twin without faults."""
