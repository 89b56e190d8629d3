"""A model that computes nothing twice: the same bits, kept within bounds, and beyond anybody's reach."""

from __future__ import annotations

import numpy as np
import pytest

from agents.models.arithmetic import Cache
from agents.models.mixture import Floats
from agents.models.reference import generate, score
from agents.models.remember import Remembering
from agents.models.twin import Twin
from tests.support.simulated import TWIN

PROMPT, OTHER = [1, 2, 3, 4, 5, 6, 7, 8], [8, 7, 6, 5, 4, 3, 2, 1]


class Attentive(Twin):
    """Counts how often it is asked for attention."""

    attended = 0

    def attend(self, layer: int, x: Floats, cache: Cache | None = None, start: int = 0) -> Floats:
        self.attended += 1
        return super().attend(layer, x, cache, start)


@pytest.fixture(scope="module")
def twin() -> Attentive:
    return Attentive.load(TWIN)


def test_what_is_remembered_has_the_bits_of_what_was_computed(twin: Twin) -> None:
    remembering = Remembering(twin)
    for precision in ("full", "int8", "full"):
        wanted = score(twin, PROMPT, precision)
        for _ in range(2):
            assert score(remembering, PROMPT, precision).tobytes() == wanted.tobytes()


def test_every_piece_is_computed_once(twin: Attentive) -> None:
    remembering = Remembering(twin)
    score(remembering, PROMPT)
    computed, asked, attended = remembering.computed, remembering.asked, twin.attended

    score(remembering, PROMPT)

    assert (remembering.computed, twin.attended) == (computed, attended)
    assert remembering.asked == 2 * asked > 0


def test_other_rows_other_layers_and_other_precisions_are_other_pieces(twin: Twin) -> None:
    remembering = Remembering(twin)
    x, y = twin.embed(PROMPT), twin.embed(OTHER)

    for layer, rows in ((0, x), (1, x), (0, y), (0, x[:4])):
        assert remembering.attend(layer, rows).tobytes() == twin.attend(layer, rows).tobytes()
    assert remembering.computed == 4
    full, low = (score(remembering, PROMPT, precision) for precision in ("full", "int4"))
    assert full.tobytes() != low.tobytes()


def test_rows_are_known_by_their_values_wherever_they_lie_in_memory(twin: Twin) -> None:
    remembering = Remembering(twin)
    x = twin.embed(PROMPT)
    spread = np.zeros((len(x), 2 * x.shape[1]), np.float32)
    spread[:, ::2] = x

    assert remembering.attend(0, spread[:, ::2]) is remembering.attend(0, x)


def test_the_bytes_that_are_held_stay_within_bounds_and_the_oldest_go_first(twin: Twin) -> None:
    piece = Remembering(twin)
    rows = [twin.embed([token, token + 1]) for token in range(4)]
    piece.attend(0, rows[0])
    small = Remembering(twin, memory_bytes=3 * piece.held_bytes)

    for number in (0, 1, 2, 0, 3):  # 0 has been asked for again: 1 is the oldest
        small.attend(0, rows[number])
    assert (small.computed, small.held_bytes) == (4, 3 * piece.held_bytes)
    for number in (2, 0, 3):
        small.attend(0, rows[number])
    assert small.computed == 4
    small.attend(0, rows[1])
    assert (small.computed, small.held_bytes) == (5, 3 * piece.held_bytes)


def test_without_memory_everything_is_computed_and_nothing_held(twin: Twin) -> None:
    remembering = Remembering(twin, memory_bytes=0)

    for _ in range(2):
        assert score(remembering, PROMPT).tobytes() == score(twin, PROMPT).tobytes()
    assert remembering.computed == remembering.asked
    assert remembering.held_bytes == 0


def test_a_bound_does_not_change_a_bit_while_pieces_come_and_go(twin: Twin) -> None:
    whole = Remembering(twin)
    score(whole, PROMPT)
    cramped = Remembering(twin, memory_bytes=whole.held_bytes // 2)

    for prompt in (PROMPT, OTHER, PROMPT):
        assert score(cramped, prompt).tobytes() == score(twin, prompt).tobytes()
        assert cramped.held_bytes <= whole.held_bytes // 2


def test_nobody_can_write_to_what_is_remembered(twin: Twin) -> None:
    remembering = Remembering(twin)
    attended = remembering.attend(0, twin.embed(PROMPT))
    gate = remembering.gate(0, attended)

    for array in (attended, gate.hidden, gate.experts, gate.weights):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def test_passes_that_fill_a_cache_are_not_remembered(twin: Attentive) -> None:
    remembering = Remembering(twin)
    wanted = generate(twin, PROMPT, 3)

    for _ in range(2):
        before = twin.attended
        generated = generate(remembering, PROMPT, 3)
        assert twin.attended - before == 3 * twin.spec.layers
        assert generated.tokens == wanted.tokens
        assert generated.logits.tobytes() == wanted.logits.tobytes()
