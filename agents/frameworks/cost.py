r"""The unified cost, shared by all that predict time: devices, frameworks, placement.  HetRoute [reconstruction].

    T_cmp(d, e, p, n) = max( n f_e / (eff_d F_d),  w_{e,p} / M_d ) + c_d                                          (1)
    T_dense(d, n)     = max( n f_a / (eff_d F_d),  w_a / M_d ) + c_d                                              (2)

    n    tokens of the call           f_e, f_a  FLOPs per token of an expert, of the dense part
    F_d  peak FLOP/s of device d      eff_d     share of it that kernels reach
    M_d  memory bandwidth, bytes/s    w         weight bytes that must be read (experts: of precision p)
    c_d  launch overhead, s

The device that executes a call is paced by the same (1) and (2): a planner errs about queues and networks only.
"""

from __future__ import annotations

from agents.models.profile import ModelProfile
from testbed.topology import Device


def roofline_s(device: Device, *, flops: float, weight_bytes: float) -> float:
    """Time of one kernel on an idle device: bound by arithmetic or by memory, plus its launch."""
    arithmetic_s = flops / (device.efficiency * device.peak_flops_per_s)
    return max(arithmetic_s, weight_bytes / device.memory_bytes_per_s) + device.launch_s


def expert_s(device: Device, profile: ModelProfile, precision: str, tokens: int) -> float:
    """Equation (1)."""
    return roofline_s(
        device, flops=tokens * profile.expert_flops_per_token, weight_bytes=profile.expert_bytes[precision]
    )


def dense_s(device: Device, profile: ModelProfile, tokens: int) -> float:
    """Equation (2) for the dense part of one layer."""
    return roofline_s(device, flops=tokens * profile.dense_flops_per_token, weight_bytes=profile.dense_bytes)


def head_s(device: Device, profile: ModelProfile, tokens: int) -> float:
    """Equation (2) for the output head."""
    return roofline_s(device, flops=tokens * profile.head_flops_per_token, weight_bytes=profile.head_bytes)
