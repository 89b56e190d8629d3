"""The whole system but sockets and namespaces: every framework, real agents, the real twin, in virtual time."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from agents.cluster import Cluster, cluster_of
from agents.frameworks.registry import FRAMEWORKS, create
from agents.protocol import Answer, Collect, Collected, Done, Message, Refused, Submit, Ticket
from orchestration.models import Model
from orchestration.references import References
from scenarios.timeline import Request, Setting
from scenarios.workload import poisson
from testbed.load import load_topology
from tests.support.virtual import VirtualFleet, VirtualLoop

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def model() -> Model:
    return Model.load(ROOT / "agents" / "models" / "mixtral-8x7b-twin")


@pytest.fixture(scope="module", params=["small3", "edge10"])
def topology_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def cluster_named(name: str) -> Cluster:
    topology = load_topology(ROOT / "topologies" / f"{name}.yaml")
    return cluster_of(topology, arrival_rate_per_s=5.0, tokens_per_request=37)


@contextmanager
def running(framework: str, cluster: Cluster, model: Model, *, quality_budget: float = 0.02) -> Iterator[VirtualFleet]:
    loop = VirtualLoop()
    fleet = VirtualFleet(
        cluster=cluster, twin=model.twin, profile=model.profile, calibration=model.calibration, loop=loop
    )
    placement = create(framework).place(cluster, model.profile, model.calibration)

    async def configure() -> None:
        fleet.configure(framework, placement, quality_budget=quality_budget)

    loop.run_until_complete(configure())
    try:
        refused = [report for report in fleet.reports if isinstance(report, Refused)]
        assert refused == []
        yield fleet
    finally:
        fleet.close()


def timeline(topology: str, model: Model, *, rate_per_s: float, duration_s: float, generate: bool) -> list[Request]:
    setting = Setting(
        topology=load_topology(ROOT / "topologies" / f"{topology}.yaml"),
        domains=model.prompts.domains,
        prompts_per_domain=64,
        prompt_tokens=64,
        seed=7,
    )
    return list(poisson(setting, rate_per_s=rate_per_s, duration_s=duration_s, generate_share=float(generate)))


def submits(requests: list[Request], model: Model, *, deadline_s: float = 30.0) -> list[tuple[str, Submit]]:
    return [
        (
            request.home,
            Submit(
                request=request.number,
                kind=request.kind,
                tokens=model.prompts.take(request.domain, request.prompt, request.tokens),
                output_tokens=request.output_tokens,
                at_s=request.at_s,
                deadline_s=request.at_s + deadline_s,
            ),
        )
        for request in requests
    ]


def answers(requests: list[Request], model: Model) -> dict[int, bytes]:
    prompts = {
        request.number: model.prompts.take(request.domain, request.prompt, request.tokens) for request in requests
    }
    return {number: reference.digest for number, reference in References(model.twin, requests, prompts).items()}


#: Some rows compute in a low precision whatever the budget.
LOSSLESS_WITHOUT_BUDGET = [name for name in FRAMEWORKS if not name.startswith("edgeshard-")]


@pytest.mark.parametrize("framework", LOSSLESS_WITHOUT_BUDGET)
def test_full_precision_logits_are_bit_identical_to_one_process(
    framework: str, topology_name: str, model: Model
) -> None:
    requests = timeline(topology_name, model, rate_per_s=20.0, duration_s=0.4, generate=False)
    with running(framework, cluster_named(topology_name), model, quality_budget=0.0) as fleet:
        done = fleet.play(submits(requests, model))

    assert [entry.error for entry in done.values()] == [None] * len(requests)
    assert {number: entry.digest for number, entry in done.items()} == answers(requests, model)


@pytest.mark.parametrize("framework", ["greedy", "edgeshard"])
def test_answers_are_the_same_alone_and_among_32_at_once(framework: str, model: Model) -> None:
    requests = timeline("small3", model, rate_per_s=3200.0, duration_s=0.01, generate=False)[:32]
    assert len(requests) >= 24
    with running(framework, cluster_named("small3"), model) as fleet:
        together = fleet.play(submits(requests, model, deadline_s=100.0))
    with running(framework, cluster_named("small3"), model) as fleet:
        alone = fleet.play(submits(requests[:1], model))

    assert together[requests[0].number].digest == alone[requests[0].number].digest
    assert {number: entry.digest for number, entry in together.items()} == answers(requests, model)


@pytest.mark.parametrize("framework", ["local-first", "edgeshard", "hetroute"])
def test_generated_tokens_are_those_of_one_process(framework: str, model: Model) -> None:
    requests = timeline("small3", model, rate_per_s=10.0, duration_s=0.4, generate=True)
    with running(framework, cluster_named("small3"), model, quality_budget=0.0) as fleet:
        done = fleet.play(submits(requests, model))

    assert {number: entry.digest for number, entry in done.items()} == answers(requests, model)
    for request in requests:
        entry = done[request.number]
        assert len(entry.top1) == request.output_tokens
        assert entry.ttft_s is not None
        assert entry.tpot_s is not None
        assert 0 < entry.ttft_s < entry.finished_s - request.at_s


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_framework_stays_within_the_quality_budget_by_its_own_account(framework: str, model: Model) -> None:
    requests = timeline("edge10", model, rate_per_s=20.0, duration_s=0.3, generate=False)
    with running(framework, cluster_named("edge10"), model, quality_budget=0.02) as fleet:
        done = fleet.play(submits(requests, model))

    assert all(entry.error is None for entry in done.values())
    assert all(entry.quality_spent <= 0.02 + 1e-9 for entry in done.values())


def test_bytes_on_the_links_are_what_the_requests_say_they_sent(model: Model) -> None:
    requests = timeline("edge10", model, rate_per_s=20.0, duration_s=0.3, generate=False)
    with running("greedy", cluster_named("edge10"), model) as fleet:
        done = fleet.play(submits(requests, model))
        carried_bytes = fleet.carried_bytes

    assert sum(entry.sent_bytes for entry in done.values()) == carried_bytes


def test_every_layer_of_every_request_leaves_one_record(model: Model) -> None:
    requests = timeline("small3", model, rate_per_s=20.0, duration_s=0.3, generate=False)
    with running("greedy", cluster_named("small3"), model) as fleet:
        done = fleet.play(submits(requests, model))
        for server in fleet.cluster.names:
            fleet.command(server, Collect())
        records = [record for report in fleet.reports if isinstance(report, Collected) for record in report.layers]

    assert sorted((record.request, record.layer) for record in records) == sorted(
        (request.number, layer) for request in requests for layer in range(model.profile.layers)
    )
    for request in requests:
        layers = [record.duration_s for record in records if record.request == request.number]
        latency_s = done[request.number].finished_s - request.at_s
        assert sum(layers) == pytest.approx(latency_s, rel=0.1)


def test_a_dead_server_fails_what_waited_for_it_and_is_avoided_afterwards(model: Model) -> None:
    requests = timeline("edge10", model, rate_per_s=8.0, duration_s=8.0, generate=False)
    victim = "s4"
    requests = [request for request in requests if request.home != victim]
    with running("greedy", cluster_named("edge10"), model) as fleet:
        fleet.loop.call_at(2.0, lambda: fleet.dead.add(victim))
        done = fleet.play(submits(requests, model, deadline_s=10.0))

    assert len(done) == len(requests)
    failed = [entry for entry in done.values() if entry.error is not None]
    assert failed
    assert all(
        f"server {victim} was lost" in str(entry.error) or "no answer within" in str(entry.error) for entry in failed
    )
    late = [done[request.number] for request in requests if request.at_s > 5.0]
    assert late
    assert [entry.error for entry in late] == [None] * len(late)


def test_a_request_without_an_answer_ends_at_its_deadline(model: Model) -> None:
    requests = timeline("small3", model, rate_per_s=5.0, duration_s=0.5, generate=False)[:1]
    with running("edgeshard", cluster_named("small3"), model) as fleet:
        fleet.dead.update(server for server in fleet.cluster.names if server != requests[0].home)
        done = fleet.play(submits(requests, model, deadline_s=3.0))

    # Whichever server enters first, it is not home, or its layers are not all at home: nobody can answer.
    assert [entry.error for entry in done.values()] == ["no answer within 3 s"]


def user_framework(path: Path, body: str) -> str:
    path.write_text(
        "from agents.frameworks.base import BaseFramework, Choice, Plan\n\n\n"
        + "class Mine(BaseFramework):\n    name = 'mine'\n\n"
        + textwrap.indent(textwrap.dedent(body).strip(), "    ")
        + "\n"
    )
    return str(path)


FIRST_COPY = """
def plan(self, demand, view):
    choices = [Choice.of(view.replicas(demand.layer, entry.expert)[0]) for entry in demand.experts]
    return Plan(choices=tuple(choices), next_server=demand.next_server or view.server)
"""


def test_a_framework_in_one_file_of_the_users_runs(tmp_path: Path, model: Model) -> None:
    requests = timeline("small3", model, rate_per_s=20.0, duration_s=0.2, generate=False)
    with running(user_framework(tmp_path / "mine.py", FIRST_COPY), cluster_named("small3"), model) as fleet:
        done = fleet.play(submits(requests, model))

    assert {number: entry.digest for number, entry in done.items()} == answers(requests, model)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (
            "def plan(self, demand, view):\n    return Plan(choices=(), next_server=view.server)",
            "the plan has experts []",
        ),
        ("def plan(self, demand, view):\n    raise KeyError('oops')", "KeyError: 'oops'"),
        ("def enter(self, arrival, view):\n    return 's99'", "the entry server 's99' does not exist"),
        (FIRST_COPY + "\ndef observe(self, feedback):\n    raise ValueError('no')", "mine: ValueError: no"),
        (
            FIRST_COPY.replace("demand.next_server or view.server", "'nowhere'"),
            "the next server 'nowhere' does not exist",
        ),
        (
            """
            def plan(self, demand, view):
                choices = [Choice(expert=e.expert, server=view.server, precision="int3") for e in demand.experts]
                return Plan(choices=tuple(choices), next_server=view.server)
            """,
            "holds no int3 copy",
        ),
    ],
)
def test_a_faulty_framework_fails_its_requests_by_name_and_nothing_hangs(
    body: str, expected: str, tmp_path: Path, model: Model
) -> None:
    requests = timeline("small3", model, rate_per_s=20.0, duration_s=0.2, generate=False)
    with running(user_framework(tmp_path / "faulty.py", body), cluster_named("small3"), model) as fleet:
        done = fleet.play(submits(requests, model))

    assert len(done) == len(requests)
    assert all(isinstance(entry, Done) and expected in str(entry.error) for entry in done.values())


def test_two_runs_of_the_same_timeline_are_equal(model: Model) -> None:
    requests = timeline("small3", model, rate_per_s=20.0, duration_s=0.3, generate=False)
    outcomes = []
    for _ in range(2):
        with running("greedy", cluster_named("small3"), model) as fleet:
            outcomes.append(fleet.play(submits(requests, model)))

    assert outcomes[0] == outcomes[1]


def test_a_framework_that_cannot_begin_is_refused_by_name(tmp_path: Path, model: Model) -> None:
    file = user_framework(tmp_path / "mine.py", FIRST_COPY + "\ndef begin(self, view):\n    raise ValueError('no')")
    with (
        pytest.raises(AssertionError, match=r"mine\.py cannot begin: ValueError: no"),
        running(file, cluster_named("small3"), model),
    ):
        pass


def test_messages_of_a_run_that_has_ended_are_dropped(model: Model) -> None:
    requests = timeline("small3", model, rate_per_s=20.0, duration_s=0.2, generate=False)
    with running("greedy", cluster_named("small3"), model) as fleet:
        done = fleet.play(submits(requests, model))
        stale = Answer(
            ticket=Ticket(
                request=10_000, kind="score", home="s1", step=0, start=0, deadline_s=100.0, path=[], late_s=0.0
            ),
            digest=b"stale",
        )
        arrays = (np.zeros(0, "<f4"), np.zeros(0, "<i4"))
        message = Message(run="before", source="s2", sent_s=0.0, size_bytes=0, body=stale, arrays=arrays)
        submit = Submit(
            request=10_000, kind="score", tokens=[1, 2, 3], output_tokens=0, at_s=fleet.loop.time(), deadline_s=90.0
        )
        fleet.loop.call_later(0.0005, lambda: fleet.agents["s1"].receive(message))
        fleet.reports.clear()
        late = fleet.play([("s1", submit)])

    assert len(done) == len(requests)
    assert late[10_000].digest != b"stale"
    assert late[10_000].error is None
