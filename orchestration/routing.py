"""Which texts a model is asked to route, and the trace that comes of it: what stands behind ``record-routing``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from agents.models.model import Model
from agents.models.record import Text, check_size, recorded, write_trace
from agents.models.replay import TRACE_SUFFIX, Replay
from agents.models.routelog import read_route_log
from agents.models.trace import Trace
from scenarios.timeline import Scenario
from testbed.errors import TestbedError, did_you_mean


def check_recordable(model: Model, into: Path) -> None:
    """TestbedError where the model is a recording itself, or the file's name is not a trace's."""
    if isinstance(model.twin, Replay):
        raise TestbedError(f"{model.directory}: is a trace already; record the routing of a twin (--model DIRECTORY)")
    _check_name(into)


def prompt_texts(model: Model, *, domains: Sequence[str], texts: int, tokens: int | None) -> list[Text]:
    """The first held-out texts of every named domain, of all where none is named; whole or their first tokens.

    TestbedError for a domain that the model does not have, or more than it has.
    """
    known = model.prompts.domains
    for domain in domains:
        if domain not in known:
            raise TestbedError(f"no domain {domain!r}{did_you_mean(domain, known)}; the model has {', '.join(known)}")
    found = []
    for domain in dict.fromkeys(domains or known):
        rows = model.prompts.rows[domain]
        if texts > len(rows):
            raise TestbedError(f"domain {domain} has {len(rows)} texts, not {texts}")
        length = rows.shape[1] if tokens is None else tokens
        found += [
            Text(dataset=domain, number=number, tokens=tuple(model.prompts.take(domain, number, length)))
            for number in range(texts)
        ]
    return found


def scenario_texts(model: Model, scenario: Scenario) -> list[Text]:
    """What the requests of a scenario ask, each once, numbered within its domain in the order of first asking."""
    asked = dict.fromkeys((each.domain, each.prompt, each.tokens, each.output_tokens) for each in scenario.requests)
    found: list[Text] = []
    numbers: dict[str, int] = {}
    for domain, prompt, tokens, output_tokens in asked:
        number = numbers.setdefault(domain, 0)
        numbers[domain] += 1
        chosen = tuple(model.prompts.take(domain, prompt, tokens))
        found.append(Text(dataset=domain, number=number, tokens=chosen, output_tokens=output_tokens))
    return found


def record_routing(model: Model, texts: Sequence[Text], into: Path) -> Trace:
    """Record the model's gate decisions on these texts; the trace as it plays back.

    TestbedError where it cannot be recorded, the trace would be too large, or the file cannot be made.
    """
    check_recordable(model, into)
    check_size(texts, model.profile.layers)
    return write_trace(into, recorded(model.twin, texts), model.profile)


def convert_log(log: Path, into: Path, *, spread: bool) -> tuple[str, Trace]:
    """Turn a route log of vLLM into a trace; what the log held, in a line, and the trace."""
    _check_name(into)
    found = read_route_log(log)
    return found.summary, write_trace(into, found.lines(spread=spread), found.profile)


def _check_name(into: Path) -> None:
    if into.suffix != TRACE_SUFFIX:
        raise TestbedError(f"{into}: a trace's name ends in {TRACE_SUFFIX}, by which --model knows it")
