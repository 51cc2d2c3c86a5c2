"""Expert parallelism without any tensor: families, maps, rules. Shared by deciders and engines."""
