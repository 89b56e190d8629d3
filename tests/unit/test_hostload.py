from __future__ import annotations

import math
from pathlib import Path

import pytest

from agents.models.model import Model
from orchestration.comparison import prepare
from orchestration.hostload import AIM, AIM_LATE, BYTE_S, GOSSIP_S, MESSAGE_S, STEPS, HostLoad, choose, predict
from scenarios.steady_load import build
from scenarios.timeline import Setting
from testbed.load import load_topology

ROOT = Path(__file__).parents[2]


def load(
    agents: float = 0.0,
    messages_per_s: float = 0.0,
    gossip_per_s: float = 0.0,
    bytes_per_s: float = 0.0,
    late: float = 0.0,
) -> HostLoad:
    return HostLoad(
        framework="any",
        agents=agents,
        messages_per_s=messages_per_s,
        gossip_per_s=gossip_per_s,
        bytes_per_s=bytes_per_s,
        late=late,
    )


def test_need_is_the_agents_and_what_messages_and_bytes_cost() -> None:
    assert load(agents=1.5).need == 1.5
    assert load(messages_per_s=100.0).need == pytest.approx(100 * MESSAGE_S)
    assert load(gossip_per_s=100.0).need == pytest.approx(100 * GOSSIP_S)
    assert load(bytes_per_s=1e8).need == pytest.approx(1e8 * BYTE_S)


def test_where_layers_are_short_lateness_decides() -> None:
    idle_but_quick = load(agents=0.01, late=0.09)

    chosen = choose([idle_but_quick], 16)

    assert 0.09 / chosen <= AIM_LATE
    assert choose([load(agents=0.01, late=0.03)], 16) == 1.0


@pytest.mark.parametrize("need", [0.1, 0.9, 1.1, 3.7, 9.99, 39.0, 150.0])
@pytest.mark.parametrize("processors", [1, 2, 16])
def test_the_smallest_step_that_leaves_enough_of_the_host_free_is_chosen(need: float, processors: int) -> None:
    chosen = choose([load(agents=need)], processors)

    assert need / (chosen * processors) <= AIM
    smaller = [step for step in STEPS if step < chosen]
    assert not smaller or need / (smaller[-1] * processors) > AIM


def test_the_candidate_that_needs_most_decides_for_all() -> None:
    assert choose([load(agents=1.0), load(agents=8.0)], 2) == choose([load(agents=8.0)], 2)


def test_a_load_beyond_the_last_step_is_slowed_as_far_as_needed() -> None:
    assert choose([load(agents=1000.0)], 1) == math.ceil(1000.0 / AIM)


def test_frameworks_that_send_more_messages_are_predicted_to_need_more() -> None:
    model = Model.load(ROOT / "agents" / "models" / "mixtral-8x7b-twin")
    topology = load_topology(ROOT / "topologies" / "small3.yaml")
    setting = Setting(
        topology=topology,
        domains=model.prompts.domains,
        prompts_per_domain=64,
        prompt_tokens=64,
        seed=0,
        arrival_rate_per_s=2.0,
        duration_s=3.0,
    )
    comparison = prepare(
        scenarios={0: build(setting)},
        topology=topology,
        model=model,
        frameworks=["greedy", "edgeshard"],
        redundancy=2.0,
    )
    greedy, edgeshard = predict(comparison)

    assert greedy.messages_per_s > 2 * edgeshard.messages_per_s
    assert greedy.bytes_per_s > 2 * edgeshard.bytes_per_s
    assert greedy.need > edgeshard.need > 0
    assert edgeshard.late > 0
