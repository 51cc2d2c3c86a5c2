"""Who gives the log its next index: the mesh's election, replication and merging, as a pure state machine.

`core` is the machine, `messages` what nodes say to each other, `interface` what its shell gives it and
carries out for it. No clock, no thread, no I/O: the journal is the shell in a node, and the simulator in
tests.
"""
