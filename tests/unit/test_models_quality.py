"""Quality of one request and its cloze items, against values computed by hand or by another formula."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from agents.models.cloze import cloze_items, pieces_beside, token_bytes
from agents.models.quality import correct, hits, kl_divergence, log_probabilities

TEXT = "der Käse „Käse“ und der Käse sind im Käselager, sagt der Käse selbst; def warten(self): warten(self)\nwarten\n"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=290, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    made.train_from_iterator([TEXT], trainer)
    return made


def words(tokenizer: Tokenizer, text: str) -> list[str]:
    tokens = tokenizer.encode(text).ids
    return [tokenizer.decode(tokens[start:end]) for start, end in cloze_items(tokens, token_bytes(tokenizer))]


# --- distributions ----------------------------------------------------------------------------------------------------


def test_divergence_of_two_coins_is_the_one_computed_by_hand() -> None:
    reference = np.log(np.array([[0.5, 0.5], [0.9, 0.1]], np.float32))
    served = np.log(np.array([[0.25, 0.75], [0.9, 0.1]], np.float32))

    first, second = kl_divergence(reference, served)

    assert first == pytest.approx(0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75), rel=1e-6)
    assert second == 0.0


def test_what_is_added_to_all_logits_of_a_position_changes_no_distribution() -> None:
    logits = np.array([[1000.0, 1001.0, 999.0]], np.float32)

    assert np.exp(log_probabilities(logits)).sum() == pytest.approx(1.0)
    assert kl_divergence(logits, logits - 500)[0] == pytest.approx(0.0, abs=1e-12)


def test_divergence_is_never_negative_and_exactly_zero_between_equals() -> None:
    draw = np.random.default_rng(3)
    logits = draw.normal(size=(50, 100)).astype(np.float32)

    assert (kl_divergence(logits, logits) == 0.0).all()
    assert (kl_divergence(logits, np.nextafter(logits, np.float32(9))) >= 0.0).all()


def test_logits_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match=r"shape \(2, 3\) cannot be held against those of shape \(2, 4\)"):
        kl_divergence(np.zeros((2, 4), np.float32), np.zeros((2, 3), np.float32))


# --- predictions ------------------------------------------------------------------------------------------------------


def test_the_last_guess_is_held_against_nothing() -> None:
    assert correct([2, 3, 9], [1, 2, 3]) == 2
    assert correct([7], [1]) == 0


def test_a_word_is_hit_only_when_every_token_of_it_is() -> None:
    tokens = [1, 2, 3, 4, 5]
    assert hits([2, 3, 4, 5, 0], tokens, [(1, 3), (4, 5)]) == 2
    assert hits([2, 0, 4, 5, 0], tokens, [(1, 3), (4, 5)]) == 1
    assert hits([2, 3, 4, 5, 0], tokens, []) == 0


# --- cloze items ------------------------------------------------------------------------------------------------------


def test_tokens_are_the_bytes_of_the_text(tokenizer: Tokenizer) -> None:
    pieces = token_bytes(tokenizer)
    assert b"".join(pieces[token] for token in tokenizer.encode(TEXT).ids).decode() == TEXT


def test_items_are_long_words_that_came_before_letter_by_letter(tokenizer: Tokenizer) -> None:
    assert words(tokenizer, "alle Käse der Käse, der Käselager Alle.") == [" Käse"]


def test_a_word_may_stand_behind_something_else_than_a_space(tokenizer: Tokenizer) -> None:
    assert words(tokenizer, "def warten(self): warten(self)\nwarten(") == [" warten", "self", "warten"]


def test_quotation_marks_beyond_ascii_are_no_letters(tokenizer: Tokenizer) -> None:
    assert words(tokenizer, "x “““ y “““ z") == []


def test_a_text_that_is_cut_has_no_item_at_the_cut(tokenizer: Tokenizer) -> None:
    assert words(tokenizer, "der Käse Käse") == []
    assert words(tokenizer, "Käse, der Käse!") == []  # the first may be the rest of a longer word


def test_an_item_begins_with_the_token_of_its_space(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("der Käse und Käse!").ids
    ((start, end),) = cloze_items(tokens, token_bytes(tokenizer))

    assert tokenizer.decode(tokens[:start]) == "der Käse und"
    assert tokenizer.decode(tokens[start:end]) == " Käse"


def test_a_token_that_the_tokenizer_does_not_know_ends_no_run(tokenizer: Tokenizer) -> None:
    assert cloze_items([100_000, 100_001], token_bytes(tokenizer)) == ()


def test_beside_a_trace_there_are_no_words(tmp_path: Path) -> None:
    assert pieces_beside(tmp_path / "routes.jsonl") is None


def test_a_tokenizer_whose_tokens_are_no_bytes_tells_no_words(tmp_path: Path, tokenizer: Tokenizer) -> None:
    other = Tokenizer(models.BPE())
    other.pre_tokenizer = pre_tokenizers.Metaspace()
    other.decoder = decoders.Metaspace()
    other.save(str(tmp_path / "tokenizer.json"))
    assert pieces_beside(tmp_path) is None

    (tmp_path / "bytes").mkdir()
    tokenizer.save(str(tmp_path / "bytes" / "tokenizer.json"))
    assert pieces_beside(tmp_path / "bytes") == token_bytes(tokenizer)
