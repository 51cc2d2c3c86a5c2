"""The MLX engine: mlx-lm's models and its continuous batching, on Metal, CUDA and CPU."""
