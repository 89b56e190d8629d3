"""Cloze items: words of a text that its reader has met before, and so may know before they come.

An item is a run of letters, ``LETTERS`` or more, that occurred earlier in the same text as such a run.  The text itself
is the exact answer, as in LAMBADA, whose answers mostly occur in their passages, too: a model that uses what it has
read finds them.

Everything follows from the tokens and the tokenizer, a byte-level BPE, whose tokens are bytes in disguise.  The space
before a word belongs to the word's first token.  A text may be cut inside a word: its first and last are no items, and
neither is a word that shares a token with what is no letter.

>>> pieces = [b"The", b" wood", b"land", b" is", b" dark", b"."]
>>> cloze_items([0, 1, 2, 3, 4, 5, 1, 2, 3], pieces)
((6, 8),)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from pathlib import Path

from tokenizers import Tokenizer, decoders

from agents.models.loader import TOKENIZER_FILE
from agents.models.prompts import read_tokenizer
from agents.models.quality import Span

#: Shorter words are mostly grammar, which is guessed without the text before them.
LETTERS = 4

#: Letters of ASCII, or bytes of a character beyond it.
_WORD = re.compile(rb"(?:[A-Za-z]|[\x80-\xff])+")


def token_bytes(tokenizer: Tokenizer) -> tuple[bytes, ...]:
    """What every token of a byte-level BPE stands for; nothing for a token that is not made of bytes."""
    byte_of = _alphabet()
    texts = [tokenizer.id_to_token(number) or "" for number in range(tokenizer.get_vocab_size())]
    return tuple(bytes(byte_of[char] for char in text) if set(text) <= byte_of.keys() else b"" for text in texts)


def pieces_beside(model: Path) -> tuple[bytes, ...] | None:
    """The token bytes of the tokenizer in a model's directory.

    None where there is none, as beside a trace, and where its tokens are not made of bytes.
    """
    file = model / TOKENIZER_FILE
    return _pieces(model, file.stat().st_mtime_ns) if file.is_file() else None


@lru_cache(maxsize=2)  # a sweep asks for every cell
def _pieces(model: Path, changed_ns: int) -> tuple[bytes, ...] | None:  # noqa: ARG001 - part of the key
    tokenizer = read_tokenizer(model)
    return token_bytes(tokenizer) if isinstance(tokenizer.decoder, decoders.ByteLevel) else None


def cloze_items(tokens: Sequence[int], pieces: Sequence[bytes]) -> tuple[Span, ...]:
    """The items of a text in order; ``pieces`` holds the bytes of every token number, of others nothing is known."""
    parts = [pieces[token] if token < len(pieces) else b"" for token in tokens]
    text = b"".join(parts)
    starts = list(accumulate(map(len, parts), initial=0))
    token_at = {start: place for place, start in enumerate(starts)}  # of several empty ones the last
    seen: set[bytes] = set()
    items: list[Span] = []
    for match in _WORD.finditer(text):
        word, start, end = match.group(), match.start(), match.end()
        if start == 0 or end == len(text):
            continue
        first = token_at.get(start - 1 if text[start - 1 : start] == b" " else start)
        after = token_at.get(end)
        if first and after is not None and word in seen and _is_long_word(word):
            items.append((first, after))
        seen.add(word)
    return tuple(items)


def _is_long_word(word: bytes) -> bool:
    """Whether these bytes are letters only, and enough of them: a dash or a quotation mark has high bytes, too."""
    text = word.decode("utf-8", "replace")
    return len(text) >= LETTERS and text.isalpha()


def _alphabet() -> dict[str, int]:
    """Which byte a character of a byte-level token stands for.

    Bytes that print as a character of Latin-1 are written as it; the others, in order, as U+0100 and up.
    """
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in set(plain)]
    return {chr(byte): byte for byte in plain} | {chr(0x100 + place): byte for place, byte in enumerate(others)}
