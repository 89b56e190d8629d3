"""What goes wrong in a network and on servers, and what becomes of the requests: in virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from agents.clock import VirtualClock
from agents.protocol import DEAD_AFTER_S, Answer, Message, Ticket
from analysis.load import Run
from orchestration.player import Played, Player
from orchestration.simulation import SimulatedFleet
from scenarios.congestion import squeeze
from scenarios.timeline import LinkChange, ServerFailure
from testbed.simulation.loop import VirtualLoop
from testbed.topology import Topology
from tests.support.simulated import (
    compared,
    ended_s,
    errors,
    every,
    placed_once,
    requests,
    run,
    scenario,
    topology,
    twin,
)

SMALL = topology("small3")
#: Until everybody has noticed: the silence, and a round of gossip.
NOTICED_S = DEAD_AFTER_S + 0.5


def dispensable_pair(framework: str, on: Topology, homes: list[str]) -> tuple[str, ...]:
    """The two busiest servers without users that leave a copy of every expert behind."""
    replicas = placed_once(framework, on).placement.replicas
    held = Counter(replica.server for replica in replicas)
    holders: dict[tuple[int, int], set[str]] = {}
    for replica in replicas:
        holders.setdefault((replica.layer, replica.expert), set()).add(replica.server)
    pairs = combinations(sorted(set(held) - set(homes)), 2)
    spared = [pair for pair in pairs if not any(servers <= set(pair) for servers in holders.values())]
    return max(spared, key=lambda pair: held[pair[0]] + held[pair[1]])


def latency_s(of: Run, *, from_s: float, to_s: float) -> pl.Series:
    return of.requests.filter(pl.col("scheduled_s").is_between(from_s, to_s, closed="left"))["latency_s"]


# --- servers that fail ------------------------------------------------------------------------------------------------


def test_a_server_that_fails_is_noticed_and_avoided_and_the_run_ends_soon(tmp_path: Path) -> None:
    asked = requests(["s1", "s2", "s1", "s3"], every(0.25, to_s=5.5))
    failed_s = 1.6
    played = replace(scenario(asked), failures=(ServerFailure(at_s=failed_s, server="s3"),), deadline_s=30.0)

    found = run(played, "greedy", SMALL, tmp_path)

    reasons = errors(found)
    for request in asked:
        reason = reasons.get(request.number)
        if request.home == "s3":
            assert (reason is None) == (request.at_s < 1.0)
        elif request.at_s > failed_s + NOTICED_S:
            assert reason is None
        elif reason is not None:
            assert reason.startswith("server s3 was lost in layer ")
    assert any(asked[number].home != "s3" for number in reasons)
    assert found.manifest.complete
    assert found.manifest.counts.sent == len(asked)
    assert found.manifest.counts.failed == len(reasons)
    assert ended_s(found) < 8.0
    assert found.events.select("event", "scheduled_s", "actual_s").rows() == [("s3 fails", failed_s, failed_s)]
    silent = found.servers.filter(pl.col("server") == "s3", ~pl.col("alive"))["t_s"]
    assert failed_s + DEAD_AFTER_S - 0.5 < silent.min() < failed_s + NOTICED_S  # type: ignore[operator]
    assert found.servers.filter(pl.col("server") != "s3")["alive"].all()


def test_requests_of_a_dead_home_fail_and_their_records_say_which_server_it_was(tmp_path: Path) -> None:
    asked = requests(["s1", "s3"], every(0.25, to_s=2.0))
    played = replace(scenario(asked), failures=(ServerFailure(at_s=0.2, server="s3"),), deadline_s=30.0)

    found = run(played, "local-first", SMALL, tmp_path)

    reasons = errors(found)
    assert {reasons[request.number] for request in asked if request.home == "s3"} == {"its home server s3 has failed"}


def test_a_request_that_only_dead_servers_could_answer_ends_at_its_deadline(tmp_path: Path) -> None:
    # Layers of edgeshard have one owner each; nobody tells home that the owner took the request along.
    dead = [ServerFailure(at_s=0.0, server=server) for server in ("s1", "s2")]
    played = replace(scenario(requests(["s3"], [0.5, 0.6])), failures=tuple(dead), deadline_s=3.0)

    found = run(played, "edgeshard", SMALL, tmp_path)

    assert errors(found) == {0: "no answer within 3 s", 1: "no answer within 3 s"}
    assert 3.6 < ended_s(found) < 4.5


@pytest.mark.parametrize("framework", ["local-first", "hetroute"])
def test_two_servers_that_fail_at_once_take_only_their_own_requests_along(framework: str, tmp_path: Path) -> None:
    on, homes = topology("edge10"), ["s1", "s2", "s5", "s8"]
    lost = dispensable_pair(framework, on, homes)
    asked = requests(homes, every(0.25, to_s=4.5))
    failures = tuple(ServerFailure(at_s=1.0, server=server) for server in lost)
    played = replace(scenario(asked), failures=failures, deadline_s=4.0)

    found = run(played, framework, on, tmp_path)

    reasons = errors(found)
    assert reasons
    expected = (*(f"server {server} was lost in layer " for server in lost), "no answer within 4 s")
    assert all(reason.startswith(expected) for reason in reasons.values())
    assert not any(asked[number].at_s > 1.0 + NOTICED_S for number in reasons)
    assert set(found.servers.filter(~pl.col("alive"))["server"]) == set(lost)
    assert found.events["event"].to_list() == [f"{server} fails" for server in lost]


# --- links that change ------------------------------------------------------------------------------------------------


def test_congestion_is_felt_while_it_lasts_and_is_over_afterwards(tmp_path: Path) -> None:
    calm = scenario(requests(["s2"], every(0.5, to_s=9.0)))
    squeezed = squeeze(SMALL, ["s1-s2"], from_s=2.4, to_s=4.4, rate_share=0.1, extra_delay_s=0.010)

    without = run(calm, "edgeshard", SMALL, tmp_path / "calm")
    found = run(replace(calm, changes=squeezed), "edgeshard", SMALL, tmp_path / "squeezed")

    before = {"from_s": 0.0, "to_s": 2.0}
    assert latency_s(found, **before).equals(latency_s(without, **before))
    during = latency_s(found, from_s=2.4, to_s=4.0) - latency_s(without, from_s=2.4, to_s=4.0)
    assert during.min() > 0.010  # type: ignore[operator]
    after = latency_s(found, from_s=5.0, to_s=9.0) - latency_s(without, from_s=5.0, to_s=9.0)
    assert after.abs().max() < 1e-3  # type: ignore[operator]
    assert found.requests["exact"].all()
    assert found.events["actual_s"].to_list() == [2.4, 4.4]
    rates = found.links.filter(pl.col("link") == "s1-s2").group_by("t_s", maintain_order=True).first()
    assert set(rates.filter(pl.col("t_s").is_between(2.5, 4.3))["rate_bps"]) == {1e8}


def test_a_link_that_loses_everything_for_two_seconds_comes_back(tmp_path: Path) -> None:
    asked = requests(["s1", "s2"], every(0.25, to_s=8.0))
    away = LinkChange(at_s=1.0, link="s1-s2", loss=1.0)
    back = LinkChange(at_s=3.0, link="s1-s2", restore=True)
    played = replace(scenario(asked), changes=(away, back), deadline_s=30.0)

    found = run(played, "greedy", SMALL, tmp_path)

    reasons = errors(found)
    assert all(reason.startswith(("server s1 was lost", "server s2 was lost")) for reason in reasons.values())
    late = [request.number for request in asked if request.at_s > 5.5]
    assert not reasons.keys() & set(late)
    assert found.requests.filter(pl.col("error").is_null())["exact"].all()
    lost = found.links.filter(pl.col("dropped") > 0)
    assert set(lost["link"]) == {"s1-s2"}
    assert 1.0 < lost["t_s"].min() <= lost["t_s"].max() <= 3.5  # type: ignore[operator]
    assert found.servers["alive"].all()  # nobody died: everybody said something to the end


def lossy(on: Topology, *, loss: float, jitter_s: float) -> Topology:
    links = [
        replace(
            link,
            forward=replace(link.forward, loss=loss, jitter_s=jitter_s),
            backward=replace(link.backward, loss=loss, jitter_s=jitter_s),
        )
        for link in on.links
    ]
    return replace(on, links=tuple(links))


def test_loss_and_jitter_cost_time_and_no_bit(tmp_path: Path) -> None:
    calm = scenario(requests(["s1", "s2", "s3"], every(0.3, to_s=3.0)))

    without = run(calm, "edgeshard", SMALL, tmp_path / "calm")
    found = run(calm, "edgeshard", lossy(SMALL, loss=0.02, jitter_s=0.001), tmp_path / "lossy")

    assert errors(found) == {}
    assert found.requests["exact"].all()
    assert found.links["dropped"].sum() > 0
    assert found.requests["latency_s"].mean() > without.requests["latency_s"].mean()  # type: ignore[operator]


# --- what is left of other runs ---------------------------------------------------------------------------------------


def test_messages_of_a_run_that_has_ended_are_dropped() -> None:
    asked = requests(["s1"], [0.5])
    comparison = compared(scenario(asked), ["greedy"], SMALL)
    (candidate,), (episode,) = comparison.candidates, comparison.episodes
    loop = VirtualLoop(start_s=-1.0)
    fleet = SimulatedFleet(topology=SMALL, model=twin(), loop=loop)
    player = Player(
        scenario=episode.scenario,
        topology=SMALL,
        prompts=episode.prompts,
        agents=fleet,
        links=fleet.network,
        clock=VirtualClock(loop),
        dilation=1.0,
        progress=lambda now_s, ended: None,
        interrupted=asyncio.Event(),
    )
    ticket = Ticket(request=0, kind="score", home="s1", step=0, start=0, deadline_s=100.0, path=[])
    arrays = (np.zeros(0, "<f4"), np.zeros(0, "<i4"))

    def answer(run_id: str) -> Message:
        body = Answer(ticket=ticket, digest=run_id.encode())
        return Message(run=run_id, source="s2", sent_s=0.5, size_bytes=0, body=body, arrays=arrays)

    async def play() -> Played:
        await player.configure(
            run_id="now", framework="greedy", cluster=comparison.cluster, placement=candidate.placement
        )
        loop.call_at(0.501, fleet.agents["s1"].receive, answer("before"))
        player.start(origin_s=0.0)
        return await player.play()

    played = loop.run_until_complete(play())
    fleet.close()
    loop.close()

    assert played.done[0].digest == episode.references[0].digest
