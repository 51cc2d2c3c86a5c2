"""What computes: models, runner processes and the engines in them."""
