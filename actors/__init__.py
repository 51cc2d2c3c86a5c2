"""Who decides: the master, the workers, the supervisors, and the layer they run on."""
