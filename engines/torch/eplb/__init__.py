"""The load balancer of experts (EPLB) in a rank: imported only where a placement asks for it."""
