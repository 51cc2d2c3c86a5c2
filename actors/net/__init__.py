"""How nodes reach one another: the mesh, NATS, and in-memory links for tests, behind one interface."""
