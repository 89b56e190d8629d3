r"""The unified cost, shared by all that predict time: devices, frameworks, placement.  HetRoute [reconstruction].

    T_cmp(d, e, p, n) = max( n f_e / (eff_d F_d),  w_{e,p} / M_d )                                                (1)
    T_batch(d, B)     = c_d + sum_{(e, p, n) in B} T_cmp(d, e, p, n)                                              (2)
    T_dense(d, n)     = c_d + max( n f_a / (eff_d F_d),  w_a / M_d )                                              (3)

    n    tokens of the call           f_e, f_a  FLOPs per token of an expert, of the dense part
    F_d  peak FLOP/s of device d      eff_d     share of it that kernels reach
    M_d  memory bandwidth, bytes/s    w         weight bytes that must be read (experts: of precision p)
    c_d  launch overhead, s           B         the calls of one message for one layer on one server

A fused kernel runs all experts of a batch with one launch, so c_d is paid once for B and not per expert: measured
operators of a mixture of experts say so (docs/models/profiles.md).  The device that executes a batch is paced by the
same equations: a planner errs about queues and networks only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from agents.models.profile import ModelProfile
from testbed.topology import Device


def kernel_s(device: Device, *, flops: float, weight_bytes: float) -> float:
    """Time of some arithmetic on an idle device, bound by FLOPs or by memory, without the launch."""
    return max(flops / (device.efficiency * device.peak_flops_per_s), weight_bytes / device.memory_bytes_per_s)


def roofline_s(device: Device, *, flops: float, weight_bytes: float) -> float:
    """The same as a kernel of its own: with its launch."""
    return kernel_s(device, flops=flops, weight_bytes=weight_bytes) + device.launch_s


def call_s(device: Device, profile: ModelProfile, precision: str, tokens: int) -> float:
    """Equation (1): one expert as a part of a batch."""
    return kernel_s(device, flops=tokens * profile.expert_flops_per_token, weight_bytes=profile.expert_bytes[precision])


def expert_s(device: Device, profile: ModelProfile, precision: str, tokens: int) -> float:
    """Equation (2) for a batch of one expert."""
    return call_s(device, profile, precision, tokens) + device.launch_s


def dense_s(device: Device, profile: ModelProfile, tokens: int) -> float:
    """Equation (3) for the dense part of one layer."""
    return roofline_s(device, flops=tokens * profile.dense_flops_per_token, weight_bytes=profile.dense_bytes)


def head_s(device: Device, profile: ModelProfile, tokens: int) -> float:
    """Equation (3) for the output head."""
    return roofline_s(device, flops=tokens * profile.head_flops_per_token, weight_bytes=profile.head_bytes)


class DeviceTimes:
    """Equations (1) and (3) for the servers of one run; nothing is computed twice."""

    def __init__(self, devices: Mapping[str, Device], profile: ModelProfile) -> None:
        self._devices, self._profile = devices, profile
        self._call_s: dict[tuple[str, str, int], float] = {}
        self._dense_s: dict[tuple[str, int], float] = {}

    def call_s(self, server: str, precision: str, tokens: int) -> float:
        """Equation (1)."""
        key = (server, precision, tokens)
        known_s = self._call_s.get(key)
        if known_s is None:
            known_s = self._call_s[key] = call_s(self._devices[server], self._profile, precision, tokens)
        return known_s

    def dense_s(self, server: str, tokens: int) -> float:
        """Equation (3)."""
        key = (server, tokens)
        known_s = self._dense_s.get(key)
        if known_s is None:
            known_s = self._dense_s[key] = dense_s(self._devices[server], self._profile, tokens)
        return known_s

    def launch_s(self, server: str) -> float:
        """c_d."""
        return self._devices[server].launch_s


@dataclass(frozen=True, slots=True, kw_only=True)
class CostTerms:
    """The unified cost of one decision, term by term; times are those of the slowest server of the team."""

    transmission_s: float
    loading_s: float
    compute_s: float  # with queueing
    quality_s: float  # the price of the loss
    traffic_s: float  # the price of the bytes that it puts on links
    ahead_s: float  # what the rest of the request is expected to take

    @property
    def layer_s(self) -> float:
        """What the layer itself takes."""
        return self.transmission_s + self.loading_s + self.compute_s

    @property
    def total_s(self) -> float:
        """What is minimised."""
        return self.layer_s + self.quality_s + self.traffic_s + self.ahead_s
