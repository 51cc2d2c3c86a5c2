"""A cluster on a virtual clock: real state machines, simulated time, disks, network, runners and clients.

`python -m support.sim --seeds 0:1000` from the directory ``tests`` runs a thousand and prints those that
broke something. A seed and a commit make a run again, byte for byte.
"""
