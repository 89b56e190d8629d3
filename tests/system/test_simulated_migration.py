"""Placements that change during a run: copies cross the links, and requests under way keep working."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pytest

from agents.models.model import Model
from agents.models.spec import twin_directory
from analysis.load import Run
from orchestration.comparison import prepare
from scenarios.timeline import ServerFailure
from tests.support.simulated import errors, every, requests, run, scenario, simulate, topology, user_framework

SMALL = topology("small3")
EXPERT_BYTES = 352_321_536
FIRST_COPY = "return [Choice.of(view.replicas(demand.layer, entry.expert)[0]) for entry in demand.experts]"

#: Layer 0 lies at s1 alone; after a second, experts 0 and 1 of it are wanted at s2.
MOVES = f"""
review_s = 1.0

def place(self, cluster, profile, calibration):
    from agents.frameworks.placements import spread
    from agents.protocol import Placement, Replica
    rest = [copy for copy in spread(cluster, profile, calibration).replicas if copy.layer]
    first = [Replica(layer=0, expert=e, server="s1", precision="full", fast=False) for e in range(profile.experts)]
    return Placement(replicas=(*first, *rest))

def plan(self, demand, view):
    choices = self.choices(demand, view)
    return Plan(choices=tuple(choices), next_server=demand.next_server or view.server)

def choices(self, demand, view):
    {FIRST_COPY}

def review(self, review):
    from msgspec import structs
    moved = tuple(
        structs.replace(copy, server="WHERE") if copy.layer == 0 and copy.expert < 2 else copy
        for copy in review.placement.replicas
    )
    return None if moved == review.placement.replicas else structs.replace(review.placement, replicas=moved)
"""


def played(tmp_path: Path, *, to_s: float = 12.0, failure: ServerFailure | None = None) -> Run:
    framework = user_framework(tmp_path / "moves.py", MOVES.replace("WHERE", "s2"))
    timeline = scenario(requests(["s2"], every(0.25, to_s=to_s), tokens=30))
    if failure is not None:
        timeline = replace(timeline, failures=(failure,))
    return run(timeline, framework, SMALL, tmp_path)


def manifest(of: Run) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode((of.path / "manifest.json").read_bytes())
    return found


def reviews(of: Run) -> list[dict[str, object]]:
    found: list[dict[str, object]] = manifest(of)["reviews"]
    return found


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return played(tmp_path_factory.mktemp("moved"))


def test_copies_cross_the_links_and_are_called_once_all_have_arrived(moved: Run) -> None:
    first = reviews(moved)[0]
    in_force_s = first["in_force_s"]
    assert isinstance(in_force_s, float)
    assert (first["changes"], first["copies"], first["moved_bytes"]) == (True, 2, 2 * EXPERT_BYTES)
    # 0.7 GB take 5.6 s at 1 Gbit/s, and other messages go the same way.
    assert 6.6 < in_force_s < 11.0
    assert not any(review["changes"] for review in reviews(moved)[1:])
    first_layer = moved.layers.filter((pl.col("layer") == 0) & (pl.col("experts") == 8))
    before = first_layer.filter(pl.col("start_s") < in_force_s)["remote_experts"].to_list()
    after = first_layer.filter(pl.col("start_s") >= in_force_s)["remote_experts"].to_list()
    assert before == [8] * len(before) != []
    assert after == [6] * len(after) != []


def test_requests_under_way_are_answered_bit_for_bit_through_the_change(moved: Run) -> None:
    assert errors(moved) == {}
    assert moved.requests["exact"].all()


def test_what_moves_is_counted_on_the_links_and_not_as_the_requests(moved: Run) -> None:
    into_s2 = moved.links.filter(pl.col("target") == "s2")["bytes"].sum()

    assert into_s2 > 2 * EXPERT_BYTES
    assert max(moved.requests["sent_bytes"].to_list()) < 20e6


def test_the_change_is_an_event_of_the_run_that_is_not_late(moved: Run) -> None:
    assert moved.events["event"].to_list() == ["placement changed, 2 copies (0.7 GB) moved"]
    assert moved.manifest.fidelity.verdict == "PASS"


def test_a_server_that_dies_during_a_move_leaves_the_placement_as_it_was(tmp_path: Path) -> None:
    found = played(tmp_path, to_s=4.0, failure=ServerFailure(at_s=2.0, server="s3"))

    (review,) = reviews(found)
    assert (review["changes"], review["in_force_s"], review["reason"]) == (True, None, "a server died meanwhile")


def test_a_copy_for_which_there_is_no_room_leaves_the_placement_as_it_was(tmp_path: Path) -> None:
    """They belong to fast memory, but arrive in slow memory, of which s2 has next to nothing here."""
    nodes = tuple(
        node
        if node.device is None or node.name != "s2"
        else replace(node, device=replace(node.device, slow_bytes=10**8))
        for node in SMALL.nodes
    )
    framework = user_framework(tmp_path / "moves.py", MOVES.replace('"WHERE"', '"s2", fast=True'))
    timeline = scenario(requests(["s2"], every(0.5, to_s=6.0)))

    found = run(timeline, framework, replace(SMALL, nodes=nodes), tmp_path)

    first = reviews(found)[0]
    assert (first["in_force_s"], errors(found)) == (None, {})
    assert "s2: a copy that moves here needs slow memory" in str(first["reason"])


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (
            MOVES.replace("WHERE", "s9"),
            "framework mine: no further review of the placement: mine places expert 0 of layer 0 on s9, which is no",
        ),
        (MOVES.replace("for copy in review", "for copy in 1 / 0 * review"), "ZeroDivisionError: division by zero"),
        (MOVES.replace("review_s = 1.0", "review_s = 0.0"), "review_s is 0.0; it must be a number above 0"),
        (MOVES.replace("review_s = 1.0", "review_s = 'soon'"), "review_s is 'soon'; it must be a number above 0"),
    ],
)
def test_a_review_that_breaks_the_rules_or_fails_is_told_and_the_run_goes_on(
    tmp_path: Path, body: str, reason: str
) -> None:
    framework = user_framework(tmp_path / "mine.py", body)

    found = run(scenario(requests(["s2"], every(0.5, to_s=2.0))), framework, SMALL, tmp_path)

    assert errors(found) == {}
    (complaint,) = manifest(found)["complaints"]
    assert reason in complaint


def test_a_framework_that_reviews_knows_what_the_one_knew_that_has_placed(tmp_path: Path) -> None:
    body = (
        MOVES.replace("return None if moved ==", "return None if self.budget or moved ==")
        + """
def measured(self, facts, exits, *, quality_budget):
    self.budget = quality_budget
"""
    )
    framework = user_framework(tmp_path / "mine.py", body)
    timeline = replace(scenario(requests(["s2"], every(0.5, to_s=2.0))), quality_budget=0.5)

    found = run(timeline, framework, SMALL, tmp_path)

    assert manifest(found)["complaints"] == []
    assert [review["changes"] for review in reviews(found)] != []
    assert not any(review["changes"] for review in reviews(found))


def test_a_copy_that_nobody_holds_leaves_the_placement_as_it_was(tmp_path: Path) -> None:
    framework = user_framework(tmp_path / "mine.py", MOVES.replace('"WHERE"', '"s2", precision="int4"'))

    found = run(scenario(requests(["s2"], every(0.5, to_s=4.0))), framework, SMALL, tmp_path)

    first = reviews(found)[0]
    assert (first["in_force_s"], errors(found)) == (None, {})
    assert "s2: the new placement puts expert 0 of layer 0 in precision int4 here" in str(first["reason"])


# --- prism's own ------------------------------------------------------------------------------------------------------


def test_prism_moves_what_its_users_turn_out_to_ask_for(tmp_path: Path) -> None:
    """Every home is said to ask about everything; each asks about one thing."""
    model, on = Model.load(twin_directory("switch-base-8")), topology("edge10")
    often = tmp_path / "often.py"
    often.write_text(
        "from agents.frameworks.prism import Prism\n\n\n"
        "class Often(Prism):\n    def __init__(self, options=None):\n        super().__init__({'review_s': 3.0})\n"
    )
    homes, domains = [server.name for server in on.servers], model.prompts.domains
    asked = tuple(
        replace(request, domain=domains[homes.index(request.home) % len(domains)], prompt=request.number // 10)
        for request in requests(homes, [*every(0.03, to_s=4.0), *every(0.2, from_s=4.0, to_s=9.0)], tokens=20)
    )
    alike = dict.fromkeys(homes, dict.fromkeys(domains, 1 / len(domains)))
    timeline = replace(scenario(asked), domain_shares=alike)
    comparison = prepare(scenarios={0: timeline}, topology=on, model=model, frameworks=[str(often)], redundancy=2.0)

    found = simulate(comparison, tmp_path / "results").run

    first, *_ = reviews(found)
    assert (first["changes"], first["reason"]) == (True, "")
    in_force_s = first["in_force_s"]
    assert isinstance(in_force_s, float)
    assert 3.0 < in_force_s < 8.0
    assert errors(found) == {}
    assert found.requests["exact"].all()
    remote = found.layers.with_columns(remote=pl.col("remote_experts") / pl.col("experts"))
    before = remote.filter(pl.col("start_s") < in_force_s)["remote"].mean()
    after = remote.filter(pl.col("start_s") > in_force_s)["remote"].mean()
    assert isinstance(before, float)
    assert isinstance(after, float)
    assert after < 0.95 * before
