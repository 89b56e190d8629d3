"""Every stored twin under the engine: the same bits alone, among 32 requests at once, and wherever its experts are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from agents.models.model import Model
from agents.models.spec import TWINS, twin_directory
from orchestration.comparison import prepare
from scenarios.timeline import Request
from tests.support.simulated import scenario, simulate, topology

SMALL = topology("small3")
HOMES = ["s2", "s3", "s1"]


def asked(model: Model, moments_s: list[float], tokens: int, output_tokens: int = 0) -> tuple[Request, ...]:
    domains = model.prompts.domains
    return tuple(
        Request(
            number=number,
            at_s=at_s,
            home=HOMES[number % 3],
            kind="generate" if output_tokens else "score",
            domain=domains[number % len(domains)],
            prompt=number,
            tokens=tokens + number % 5,
            output_tokens=output_tokens,
        )
        for number, at_s in enumerate(moments_s)
    )


@pytest.fixture(scope="module", params=sorted(TWINS))
def model(request: pytest.FixtureRequest) -> Model:
    """Nothing is remembered: every pass is computed where it runs."""
    return Model.load(twin_directory(request.param))


@pytest.mark.parametrize("output_tokens", [0, 3], ids=["score", "generate"])
def test_32_requests_at_once_get_the_bits_of_each_alone_in_every_placement(
    model: Model, output_tokens: int, tmp_path: Path
) -> None:
    together = scenario(asked(model, [0.5] * 32, tokens=6, output_tokens=output_tokens))
    played = replace(together, deadline_s=1000.0, quality_budget=0.0)

    comparison = prepare(
        scenarios={0: played}, topology=SMALL, model=model, frameworks=["greedy", "edgeshard"], redundancy=1.5
    )

    for run in simulate(comparison, tmp_path / "results").runs:
        assert run.requests["error"].null_count() == 32
        assert run.requests["exact"].to_list() == [True] * 32  # the reference is each prompt alone, in one process
