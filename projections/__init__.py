"""What the log means: state, tables for people, and the replay core."""
