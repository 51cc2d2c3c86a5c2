"""Expert parallelism on torch: each rank holds some experts of every layer, and all of everything else."""
