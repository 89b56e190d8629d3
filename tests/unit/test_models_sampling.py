"""Sampling draws by the scores, the same way every time."""

from __future__ import annotations

import numpy as np
import pytest

from agents.models.sampling import Sampling, choose

LOGITS = np.log(np.array([0.1, 0.6, 0.3], np.float32))


def shares(sampling: Sampling, draws: int = 2000) -> list[float]:
    chosen = [choose(LOGITS, sampling, sampling.draw(request, 0)) for request in range(draws)]
    return [chosen.count(token) / draws for token in range(3)]


def test_tokens_come_as_often_as_their_scores_say() -> None:
    assert shares(Sampling(temperature=1.0)) == pytest.approx([0.1, 0.6, 0.3], abs=0.04)


def test_a_low_temperature_sharpens_and_zero_takes_the_likeliest() -> None:
    assert shares(Sampling(temperature=0.5))[1] == pytest.approx(0.36 / 0.46, abs=0.04)
    assert shares(Sampling()) == [0.0, 1.0, 0.0]


def test_top_p_keeps_the_likeliest_that_reach_it() -> None:
    assert shares(Sampling(temperature=1.0, top_p=0.85)) == pytest.approx([0.0, 2 / 3, 1 / 3], abs=0.04)
    assert shares(Sampling(temperature=1.0, top_p=0.5)) == [0.0, 1.0, 0.0]


def test_every_draw_has_a_token() -> None:
    for draw in (0.0, 0.5, np.nextafter(1.0, 0.0)):
        assert choose(LOGITS, Sampling(temperature=1.0), float(draw)) in (0, 1, 2)


def test_the_same_request_gets_the_same_text_and_other_seeds_another() -> None:
    drawn = [[Sampling(temperature=1.0, seed=seed).draw(7, step) for step in range(4)] for seed in (1, 1, 2)]

    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.parametrize(("wrong", "message"), [({"temperature": -1.0}, "temperature"), ({"top_p": 0.0}, "top_p")])
def test_what_cannot_be_is_refused(wrong: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sampling(**wrong)  # type: ignore[arg-type]
