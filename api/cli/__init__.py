"""The command line, `cuebook`: one module for each command, and what they share."""
