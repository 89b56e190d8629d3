"""What a framework of one's own may use besides copies: loads ahead, what is worth keeping, notes, the run's seed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pytest

from analysis.load import Run
from orchestration.errors import FleetError
from tests.support.simulated import (
    compared,
    errors,
    every,
    requests,
    run,
    scenario,
    simulate,
    topology,
    user_framework,
)

SMALL = topology("small3")

#: All experts of a request run at s1, from slow memory.
AT_S1 = """
def place(self, cluster, profile, calibration):
    from agents.protocol import Placement, Replica
    every = [(layer, expert) for layer in range(profile.layers) for expert in range(profile.experts)]
    copies = [Replica(layer=l, expert=e, server="s1", precision="full", fast=False) for l, e in every]
    return Placement(replicas=tuple(copies))

def enter(self, arrival, view):
    return "s1"

def begin(self, view):
    self.view = view

def plan(self, demand, view):
    choices = [Choice.of(view.replicas(demand.layer, entry.expert)[0]) for entry in demand.experts]
    return Plan(choices=tuple(choices), next_server=demand.next_server or "s1", PLAN)

def popular(self, layer, view):
    usage = view.calibration.usage.mean(axis=0)
    copies = [copy for copy in view.placement.replicas if copy.layer == layer]
    return tuple(sorted(copies, key=lambda copy: -usage[layer, copy.expert])[:2])
"""
NEXT_LAYER = "prefetch=self.popular(demand.layer + 1, view)"


def loads(of: Run) -> dict[str, int]:
    """Of server s1."""
    manifest: dict[str, Any] = msgspec.json.decode((of.path / "manifest.json").read_bytes())
    found: dict[str, int] = manifest["loads"]["s1"]
    return found


def played(tmp_path: Path, body: str, *, homes: tuple[str, ...] = ("s1",), to_s: float = 0.6) -> Run:
    framework = user_framework(tmp_path / "mine.py", body)
    return run(scenario(requests(homes, every(0.1, to_s=to_s), tokens=30)), framework, SMALL, tmp_path)


def test_what_a_plan_names_is_loaded_ahead_and_counted(tmp_path: Path) -> None:
    """One request of nearly all 256 experts; two of the next layer's are loaded while a layer is computed."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    found = played(tmp_path / "a", AT_S1.replace("PLAN", NEXT_LAYER))
    without = played(tmp_path / "b", AT_S1.replace("PLAN", ""))

    assert errors(found) == errors(without) == {}
    demanded = without.layers["slow_experts"].sum()
    assert loads(without) == {"demanded": demanded, "prefetched": 0, "used": 0, "wasted": 0}
    ahead = loads(found)
    assert 31 <= ahead["prefetched"] <= 62
    assert ahead["used"] == ahead["prefetched"]  # 30 tokens ask for the most popular experts of every layer
    assert ahead["demanded"] + ahead["used"] == demanded
    assert found.requests["latency_s"][0] < without.requests["latency_s"][0]
    assert found.requests["exact"].all()


def test_nothing_can_be_loaded_ahead_on_another_server(tmp_path: Path) -> None:
    body = AT_S1.replace('return "s1"', "return arrival.home").replace("PLAN", NEXT_LAYER)

    found = played(tmp_path, body, homes=("s2",))

    assert errors(found) == {0: "mine: s2 can load nothing ahead that lies at s1"}


def test_a_run_begins_with_what_a_framework_says_is_worth_keeping(tmp_path: Path) -> None:
    """Fast memory of s1 holds 115 experts: all of the first 14 layers, and some of the one after."""
    body = AT_S1.replace("PLAN", "") + "\ndef worth(self):\n    return lambda key: -key[0]\n"

    found = played(tmp_path, body)

    slow = dict(found.layers.group_by("layer").agg(pl.col("slow_experts").sum()).iter_rows())
    assert [layer for layer in range(32) if not slow[layer]] == list(range(14))


def test_a_framework_that_cannot_say_what_is_worth_keeping_is_refused_by_name(tmp_path: Path) -> None:
    body = AT_S1.replace("PLAN", "") + "\ndef worth(self):\n    return lambda key: key / 0\n"

    with pytest.raises(FleetError, match=r"mine\.py cannot begin: TypeError"):
        played(tmp_path, body)


# --- notes ------------------------------------------------------------------------------------------------------------

NOTED = """
def notes(self, arrival, view):
    return f"{arrival.home} {arrival.tokens}".encode()

def plan(self, demand, view):
    step = len(demand.notes.split())
    assert demand.notes.startswith(demand.home.encode()), demand.notes
    assert step == 2 + demand.layer, (step, demand.layer)
    choices = [Choice.of(view.replicas(demand.layer, entry.expert)[0]) for entry in demand.experts]
    following = view.cluster.names[demand.layer % len(view.cluster.names)]
    return Plan(choices=tuple(choices), next_server=demand.next_server or following, notes=demand.notes + NEWS)
"""

PLANNED = """
def plan(self, demand, view):
    choices = [Choice.of(view.replicas(demand.layer, entry.expert)[0]) for entry in demand.experts]
    return Plan(choices=tuple(choices), next_server=demand.next_server or view.server)
"""


def test_notes_travel_with_a_request_and_a_plan_may_change_them(tmp_path: Path) -> None:
    found = played(tmp_path, NOTED.replace("NEWS", 'b" x"'), homes=("s1", "s2", "s3"))

    assert errors(found) == {}
    assert found.requests["exact"].all()


def test_too_many_notes_are_refused_where_they_are_written(tmp_path: Path) -> None:
    found = played(tmp_path, NOTED.replace("NEWS", "bytes(4000)"))

    assert errors(found) == {0: "mine, layer 0: notes are at most 2048 bytes, not 4005 bytes"}


# --- announcements ----------------------------------------------------------------------------------------------------

#: Every server knows by their announcements which requests came before, wherever their homes are.
ANNOUNCED = """
def begin(self, view):
    self.known = []

def announce(self, arrival, view):
    self.known.append((arrival.home, arrival.request))
    return f"{arrival.request} {view.now_s()}".encode()

def heard(self, source, text, view):
    request, said_s = text.decode().split()
    assert source != view.server
    assert 0.0 <= view.now_s() - float(said_s) - view.cluster.delay_s[
        view.cluster.index(source)][view.cluster.index(view.server)] < 0.005
    self.known.append((source, int(request)))

def plan(self, demand, view):
    assert {number for _, number in self.known} >= set(range(demand.request + 1)), self.known
    choices = [Choice.of(view.replicas(demand.layer, entry.expert)[0]) for entry in demand.experts]
    return Plan(choices=tuple(choices), next_server=demand.next_server or view.server)
"""


def test_what_a_home_announces_is_heard_everywhere_as_soon_as_links_allow(tmp_path: Path) -> None:
    found = played(tmp_path, ANNOUNCED, homes=("s1", "s2", "s3"), to_s=0.8)

    assert errors(found) == {}
    assert len(found.requests) == 3


def test_too_long_an_announcement_fails_its_request(tmp_path: Path) -> None:
    found = played(tmp_path, "def announce(self, arrival, view):\n    return bytes(4000)\n" + PLANNED)

    assert errors(found) == {0: "mine: announcements are at most 2048 bytes, not 4000 bytes"}


def test_a_framework_that_fails_on_what_it_hears_is_named_once_per_server(tmp_path: Path) -> None:
    deaf = "def announce(self, arrival, view):\n    return b'x'\n\ndef heard(self, source, text, view):\n    1 / 0\n"

    framework = user_framework(tmp_path / "mine.py", deaf + PLANNED)
    found = simulate(
        compared(scenario(requests(["s1"], every(0.1, to_s=1.0))), [framework], SMALL), tmp_path / "results"
    )

    for server in ("s2", "s3"):
        assert found.said.count(f"{server}: mine: ZeroDivisionError: division by zero") == 1


# --- the seed of the run ----------------------------------------------------------------------------------------------


def test_another_seed_draws_other_copies_for_the_same_requests(tmp_path: Path) -> None:
    asked = scenario(requests(["s1", "s2"], every(0.2, to_s=0.9)))

    def sent_bytes(seed: int, place: str) -> list[int]:
        outcome = simulate(compared(asked, ["random"], SMALL, seed=seed), tmp_path / place)
        bytes_of: list[int] = outcome.run.requests["sent_bytes"].to_list()
        return bytes_of

    assert sent_bytes(1, "a") == sent_bytes(1, "b") != sent_bytes(2, "c")
