"""Whether the files of a twin's directory are of one twin: each may be well formed and still be another's."""

from __future__ import annotations

from pathlib import Path

from agents.models.calibrate import CALIBRATION_FILE, Calibration
from agents.models.exits import EXITS_FILE, ExitHeads
from agents.models.facts import FACTS_FILE, ExpertFacts
from agents.models.loader import SPEC_FILE
from agents.models.profile import ModelProfile
from agents.models.prompts import PROMPTS_FILE, Prompts
from agents.models.spec import ModelSpec
from testbed.errors import TestbedError

ANEW = "measure it anew: python -m agents.models.calibrate"


def check_together(
    directory: Path,
    *,
    spec: ModelSpec,
    profile: ModelProfile,
    calibration: Calibration,
    prompts: Prompts,
    facts: ExpertFacts | None,
    exits: ExitHeads | None,
) -> None:
    """TestbedError naming the first file that is not of the twin that ``model.json`` describes."""
    for name in ("layers", "experts", "top_k", "gating"):
        mine, theirs = getattr(spec, name), getattr(profile, name)
        if mine != theirs:
            raise TestbedError(
                f"{directory / SPEC_FILE}: {name} is {mine}, but {profile.name}, for which it stands, has {theirs}"
            )
    shape = (spec.layers, spec.experts)
    if calibration.usage.shape[1:] != shape:
        raise TestbedError(
            f"{directory / CALIBRATION_FILE}: it is of {calibration.usage.shape[1]} layers and "
            f"{calibration.usage.shape[2]} experts, {SPEC_FILE} has {shape[0]} and {shape[1]}; {ANEW}"
        )
    for domain, rows in prompts.rows.items():
        if int(rows.max()) >= spec.vocab:
            raise TestbedError(
                f"{directory / PROMPTS_FILE}: tensor {domain} has token {int(rows.max())}, "
                f"{SPEC_FILE} has a vocabulary of {spec.vocab}"
            )
    if facts is not None and facts.importance.shape != shape:
        layers, experts = facts.importance.shape
        raise TestbedError(
            f"{directory / FACTS_FILE}: it is of {layers} layers and {experts} experts, "
            f"{SPEC_FILE} has {shape[0]} and {shape[1]}; {ANEW}"
        )
    if exits is not None and exits.maps.shape[:2] != (spec.layers - 1, spec.width):
        exit_count, width = exits.maps.shape[:2]
        raise TestbedError(
            f"{directory / EXITS_FILE}: it has {exit_count} exits of width {width}, "
            f"{SPEC_FILE} asks for {spec.layers - 1} of width {spec.width}; {ANEW}"
        )
