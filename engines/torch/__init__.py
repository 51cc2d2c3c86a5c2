"""The torch engine: transformers' models with continuous batching, on CPUs, CUDA and Ascend NPUs."""
