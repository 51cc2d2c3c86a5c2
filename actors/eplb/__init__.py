"""The control plane of expert placement: load windows, policies, the gate. All pure, on numpy arrays.

L layers, E logical experts and P physical slots of a layer, R ranks of S = P / R slots each: slot p lives
on rank ``p // S``. A placement is int32 ``[L, P]``, the logical expert in each slot; loads are float64
``[L, E]``, the rows that each logical expert computed, in whatever replica.
"""
