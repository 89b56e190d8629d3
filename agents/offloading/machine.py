r"""What a group and a load cost on one machine: the roofline of the profile, shared weights read once per batch.

    T(group before a dense part)   = max( Σ_i (n_i f_a + f_att(n_i, c_i)) / (eff F),  (w_a + Σ_i c_i kv) / M ) + c   (1)
    T(group before its experts)    = c + Σ_e  max( n_e f_e / (eff F),  w_e / M )                                     (2)
    T(output head, for those at the end of a pass)  = max( N f_h / (eff F),  w_h / M ) + c                           (3)
    T(load)                        = w_e / (B s)                                                                     (4)

    n_i  tokens of request i, c_i its positions    n_e  tokens of the whole group that go to expert e
    c    launch, once per group as in ``agents.frameworks.cost``
    B    storage to fast memory, bytes/s           s    share of B that this way of reading reaches, 1 for large reads
    M    memory bandwidth; M - B for a group that starts while the channel reads

Loads and kernels share the memory.  What is read from storage is written into it once, at up to B; a group that starts
during a load is charged for it all along, although the load may end earlier, and one that starts without is not,
although a load may begin.  A scheduler that overlaps pays this, lockstep never does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from agents.frameworks.cost import call_s, head_s, roofline_s
from agents.models.profile import ModelProfile
from agents.models.quantize import FULL
from testbed.errors import TestbedError
from testbed.topology import Device


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A device, its storage, and the model that they carry."""

    device: Device
    profile: ModelProfile
    precision: str = FULL
    fault_share: float = 1.0  # of the storage bandwidth that page faults reach, in (0, 1]
    _call_s: dict[tuple[int, bool], float] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """TestbedError where loads would take all of the memory bandwidth, or a share is none."""
        if not 0 < self.fault_share <= 1:
            raise TestbedError(f"page faults reach a share of the storage bandwidth in (0, 1], not {self.fault_share}")
        if self.device.load_bytes_per_s >= self.device.memory_bytes_per_s:
            raise TestbedError("loading cannot be as fast as the memory that it writes to")

    @property
    def expert_bytes(self) -> int:
        """Weights of one expert."""
        return self.profile.expert_bytes[self.precision]

    @cached_property
    def _while_loading(self) -> Device:
        left = self.device.memory_bytes_per_s - self.device.load_bytes_per_s
        return replace(self.device, memory_bytes_per_s=left)

    def slots(self, fraction: float) -> int:
        """Experts that a cache of this fraction of all experts holds: never fewer than one layer has.

        One layer's experts are what a prompt may ask for at once.
        """
        if not 0 <= fraction <= 1:
            raise TestbedError(f"a cache holds a share of all experts in [0, 1], not {fraction}")
        return max(self.profile.experts, round(fraction * self.profile.layers * self.profile.experts))

    def dense_s(self, passes: Iterable[tuple[int, int]], *, loading: bool) -> float:
        """Equation (1) for (tokens, positions before them) of every request."""
        profile, tokens, flops, kept = self.profile, 0, 0.0, 0
        for count, before in passes:
            tokens += count
            flops += profile.attention_flops(count, before + count)
            kept += before + count
        return roofline_s(
            self._while_loading if loading else self.device,
            flops=flops + tokens * profile.dense_flops_per_token,
            weight_bytes=profile.dense_bytes + kept * profile.kv_bytes_per_token,
        )

    def experts_s(self, tokens: Mapping[int, int], *, loading: bool) -> float:
        """Equation (2) for the tokens of every expert."""
        known, total_s = self._call_s, self.device.launch_s if tokens else 0.0
        for count in tokens.values():
            found = known.get((count, loading))
            if found is None:
                device = self._while_loading if loading else self.device
                found = known[count, loading] = call_s(device, self.profile, self.precision, count)
            total_s += found
        return total_s

    def head_s(self, requests: int, *, loading: bool) -> float:
        """Equation (3)."""
        return head_s(self._while_loading if loading else self.device, self.profile, requests) if requests else 0.0

    def load_s(self, *, faults: bool) -> float:
        """Equation (4)."""
        share = self.fault_share if faults else 1.0
        return self.expert_bytes / (self.device.load_bytes_per_s * share)
