"""The way of logits from the end of a pass to one number: what is sent, what waits, what is left out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from agents.codec import decode_report, encode_management
from agents.logits import array_of, teller
from agents.models.quality import kl_divergence
from agents.models.reference import digest
from agents.protocol import Logits, ProtocolError
from orchestration.divergences import Divergences
from orchestration.logitsfile import LogitsFile
from orchestration.references import References
from scenarios.timeline import Request
from tests.support.simulated import twin

PROMPT = [5, 6, 7, 8, 9]
REQUEST = Request(number=3, at_s=0.0, home="s1", kind="score", domain="code", prompt=0, tokens=len(PROMPT))


@pytest.fixture
def references() -> References:
    return References(twin().twin, [REQUEST], {3: PROMPT})


def sent(logits: np.ndarray, *, request: int = 3) -> Logits:
    """What an agent sends of these logits, after its way over the management plane."""
    told: list[Logits] = []
    teller(told.append, known=frozenset())(request, digest(logits), logits)
    report = decode_report(encode_management(told[0]))
    assert isinstance(report, Logits)
    return report


def damaged(references: References) -> np.ndarray:
    logits = references.logits(3).copy()
    logits[2] *= 1.25
    return logits


# --- at the agent -----------------------------------------------------------------------------------------------------


def test_logits_arrive_bit_for_bit() -> None:
    logits = np.random.default_rng(1).normal(size=(4, 9)).astype(np.float32)
    assert (array_of(sent(logits)) == logits).all()


def test_known_logits_and_too_large_ones_are_not_sent() -> None:
    logits = np.ones((4, 8), np.float32)
    told: list[Logits] = []

    teller(told.append, known={b"known"})(1, b"known", logits)
    teller(told.append, known=frozenset(), limit_bytes=logits.nbytes - 1)(1, b"other", logits)
    assert told == []

    teller(told.append, known={b"known"}, limit_bytes=logits.nbytes)(1, b"other", logits)
    assert len(told) == 1


@pytest.mark.parametrize(("rows", "size_bytes"), [(0, 8), (2, 12), (1, 0), (1, 6), (1, 9 * 2**20)])
def test_logits_whose_sizes_contradict_each_other_are_refused(rows: int, size_bytes: int) -> None:
    with pytest.raises(ProtocolError, match=f"request 7: {size_bytes} bytes are not {rows} rows"):
        array_of(Logits(request=7, digest=b"", rows=rows, values=bytes(size_bytes)))


# --- at the orchestrator ----------------------------------------------------------------------------------------------


def test_other_logits_diverge_by_the_mean_over_positions(references: References) -> None:
    report = sent(damaged(references))
    at_once = Divergences(references)

    at_once.hear(report)

    expected = kl_divergence(references.logits(3), damaged(references)).mean()
    assert expected > 0
    assert at_once.found == {(3, report.digest): expected}


def test_what_waits_in_a_file_gives_the_same_numbers(references: References, tmp_path: Path) -> None:
    report = sent(damaged(references))
    at_once = Divergences(references)
    at_once.hear(report)

    with LogitsFile(tmp_path) as file:
        later = Divergences(references, later=file)
        later.hear(report)
        assert (later.waiting, later.found) == (1, {})
        later.settle()

    assert later.found == at_once.found
    assert list(tmp_path.iterdir()) == []  # the file has no name


def test_an_interruption_leaves_the_rest_unknown(references: References, tmp_path: Path) -> None:
    with LogitsFile(tmp_path) as file:
        later = Divergences(references, later=file)
        later.hear(sent(damaged(references)))
        later.settle(interrupted=lambda: True)

    assert (later.found, later.complaints) == ({}, [])


def test_the_references_own_logits_and_those_of_no_request_are_passed_over(references: References) -> None:
    divergences = Divergences(references)

    divergences.hear(sent(references.logits(3)))
    divergences.hear(sent(damaged(references), request=4))

    assert (divergences.found, divergences.complaints) == ({}, [])


def test_logits_that_do_not_fit_are_left_out_and_said(references: References, tmp_path: Path) -> None:
    logits = damaged(references)
    with LogitsFile(tmp_path, limit_bytes=logits.nbytes - 1) as file:
        full = Divergences(references, later=file)
        full.hear(sent(logits))
    assert full.complaints == ["no room for the logits of request 3: its divergence is not known"]

    wrong = Divergences(references)
    wrong.hear(sent(logits[:3]))
    assert wrong.complaints == [f"the logits of request 3 have shape (3, {logits.shape[1]}), not {logits.shape}"]
    wrong.hear(Logits(request=3, digest=b"?", rows=2, values=bytes(12)))
    assert "12 bytes are not 2 rows" in wrong.complaints[1]


def test_after_its_end_a_file_takes_nothing_more(tmp_path: Path) -> None:
    file = LogitsFile(tmp_path)
    file.close()
    assert not file.keep(1, np.ones((1, 1), np.float32))


def test_references_are_kept_or_computed_anew_with_the_same_bits(references: References, tmp_path: Path) -> None:
    anew = references.logits(3)
    assert references.known_logits() == frozenset()

    with LogitsFile(tmp_path) as file:
        references.compute(keep=file)
        assert references.known_logits() == {digest(anew)}
        assert (file.read((tuple(PROMPT), 0, None)) == anew).all()  # type: ignore[union-attr]
