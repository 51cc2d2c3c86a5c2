"""A cluster on a virtual clock: the actors of production, and simulated time, network, disks and runners.

A node is the tree of actors of `actors.node`, under its supervisors, on its real log: journal, master,
router, archive, backfiller, worker and gateway, with the reporter, the token hub and the deciders. What
stands for hardware, processes and connections is in `runners` and in `stand_ins`: telemetry, the downloader
and the API server. The projector, which reads only, is left out. Actors take turns on one thread (`process`),
in an order that the seed draws; they talk over the in-memory transport with bad weather (`network`); what a
kill or a power cut leaves of the files is what the next process finds (`disk`).

`python -m support.sim --seeds 0:1000` from the directory ``tests`` runs a thousand and prints those that
broke something. A seed and a commit make a run again, byte for byte.
"""
