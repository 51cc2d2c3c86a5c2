"""Who gives the log its next index, as pure state machines: no clock, no thread, no I/O.

`core` is that of the mesh (election, replication and merging), `messages` what its nodes say to each other,
`interface` what the shell gives it and carries out for it. `leased` is that of a log on NATS. The journal is
the shell in a node; the simulator in tests has one of its own.
"""
