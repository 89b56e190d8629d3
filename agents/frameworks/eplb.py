r"""Copies of busy experts, packed evenly.  EPLB, DeepSeek-V3 (arXiv 2412.19437, section 3.4) and its published code.

    r_e = 1 for all e;   repeat:  r_e += 1 for  e = argmax_e w_e / r_e          until S copies in all             (1)
    copies in order of w_e / r_e, heaviest first, each to  argmin_d (W_d + w_e / r_e) / C_d  with room for it     (2)

    w_e  load of expert e: what all users ask of it (``domains``)   S    copies of a layer
    W_d  load packed on server d so far                           C_d  capacity: calls of an expert per second on d

(1) and the order of (2) are the paper's.  Ours:

- Capacity.  The paper's servers are equal and hold equally many copies of a layer.  Here room follows fast memory
  (``placements.copies_per_server``): server d holds at most  ceil(n_d (l + 1) / L)  of its n_d copies in layers 0 to l.
  With equal servers, (2) is the paper's "least loaded with room".
- Two copies of an expert never share a server, so that r_e is at most the number of servers; a copy that finds no
  server goes to the next busiest expert.
- Groups.  EPLB first packs groups of experts to nodes where the gate chooses groups.  Our models' gates do not; this is
  its global policy.  Applied to groups, then within each node, (1) and (2) give the published example.
- Time.  The load is that of the whole run; the authors count it and compute all of this anew every few minutes.
- Online.  (1) assumes that copies share a load equally, so one of the living copies is drawn for each pass (``draws``),
  and results are gathered at home.  Distance, backlog and drift of the load count for nothing: a cluster of one
  building has none of the first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from agents.cluster import Cluster
from agents.frameworks.cost import expert_s
from agents.frameworks.domains import server_usage
from agents.frameworks.expected import home_shares
from agents.frameworks.placements import Memory, copies_per_server
from agents.frameworks.random_choice import RandomChoice
from agents.models.calibrate import Calibration
from agents.models.profile import ModelProfile
from agents.protocol import FULL, Placement, Replica


class Eplb(RandomChoice):
    """Equations (1) and (2), and a copy at random online."""

    name = "eplb"

    def place(self, cluster: Cluster, profile: ModelProfile, calibration: Calibration) -> Placement:
        """Layer by layer."""
        rooms = copies_per_server(cluster, profile, FULL, framework=self.name)
        capacity = [1.0 / expert_s(server.device, profile, FULL, 1) for server in cluster.servers]
        memory, size_bytes = Memory(cluster), profile.expert_bytes[FULL]
        usage = np.tensordot(home_shares(cluster), server_usage(cluster, calibration), axes=1)  # (layers, experts)
        used = [0] * len(rooms)
        replicas = []
        for layer in range(profile.layers):
            due = [math.ceil(room * (layer + 1) / profile.layers) for room in rooms]
            slots = sum(rooms) * (layer + 1) // profile.layers - sum(rooms) * layer // profile.layers
            quota = [room - taken for room, taken in zip(due, used, strict=True)]
            load = usage[layer].tolist()
            counts = copy_counts(load, slots, most=len(rooms))
            for server, experts in enumerate(pack(load, counts, quota, capacity)):
                for expert in experts:
                    name = cluster.names[server]
                    fast = memory.take(name, size_bytes) is True
                    replicas.append(Replica(layer=layer, expert=expert, server=name, precision=FULL, fast=fast))
                used[server] += len(experts)
        return Placement(replicas=tuple(replicas))


def copy_counts(load: Sequence[float], slots: int, *, most: int) -> list[int]:
    """Equation (1), r_e at most ``most``; ties go to the lowest expert.

    >>> copy_counts([90.0, 30.0, 60.0], 6, most=6)
    [3, 1, 2]
    """
    counts = [1] * len(load)
    for _ in range(slots - len(load)):
        open_ = [expert for expert, count in enumerate(counts) if count < most]
        if not open_:
            break
        counts[max(open_, key=lambda expert: load[expert] / counts[expert])] += 1
    return counts


def pack(
    load: Sequence[float], counts: Sequence[int], rooms: Sequence[int], capacity: Sequence[float]
) -> list[list[int]]:
    """Equation (2): the experts of each server, none twice; ties go to the lowest expert and server.

    A copy that finds no server with room and without this expert is given to another expert, the busiest by (1) that
    can take it; left out only where every server with room holds everything.  It is never an expert's first one while
    there is room for all copies together: any server with room will do for that.

    >>> pack([90.0, 30.0, 60.0], [3, 1, 2], rooms=[2, 2, 2], capacity=[1.0, 1.0, 1.0])
    [[0, 1], [0, 2], [0, 2]]
    """
    held: list[list[int]] = [[] for _ in rooms]
    packed = [0.0] * len(rooms)
    each = [weight / count for weight, count in zip(load, counts, strict=True)]
    copies = [expert for expert, count in enumerate(counts) for _ in range(count)]
    placed = [0] * len(load)

    def place(expert: int) -> bool:
        servers = [s for s in range(len(rooms)) if len(held[s]) < rooms[s] and expert not in held[s]]
        if not servers:
            return False
        best = min(servers, key=lambda server: (packed[server] + each[expert]) / capacity[server])
        held[best].append(expert)
        packed[best] += each[expert]
        placed[expert] += 1
        return True

    without = [expert for expert in sorted(copies, key=lambda expert: -each[expert]) if not place(expert)]
    for _ in without:
        busiest = sorted(
            range(len(load)), key=lambda expert: (placed[expert] > 0, -load[expert] / max(1, placed[expert]))
        )
        any(place(expert) for expert in busiest)
    return held
