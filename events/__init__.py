"""What can happen, and the log that keeps it."""
