"""States how good the stored twin is: ``python -m agents.models.evaluate``.

Held-out perplexity per token and bits per byte of every domain (the rows of ``heldout.safetensors``, documents that
were never trained on), how the domains share the experts, and what fewer bits cost.

    perplexity     = exp(mean NLL per token)
    bits per byte  = NLL / ln 2 / bytes of the scored tokens
    distance       = ½ Σ_e |usage_a(e) - usage_b(e)|   total variation of two domains' usage: 0 equal, 1 disjoint
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from agents.models.arguments import positive
from agents.models.mixture import Gate
from agents.models.prompts import Prompts, read_tokenizer
from agents.models.quantize import FULL, PRECISIONS
from agents.models.reference import next_token_nll, score
from agents.models.spec import TWINS, ModelSpec, twin_directory
from agents.models.twin import Twin
from testbed.errors import TestbedError

MOST_SHOWN = 8  # experts whose shares fit on a line
ROWS = 64  # per domain


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """How well one domain's text is predicted."""

    nats_per_token: float
    bytes_per_token: float

    @property
    def perplexity(self) -> float:
        """Per token."""
        return math.exp(self.nats_per_token)

    @property
    def bits_per_byte(self) -> float:
        """Comparable between tokenizers."""
        return self.nats_per_token / math.log(2) / self.bytes_per_token


def evaluate(
    twin: Twin, tokenizer: Tokenizer, rows: npt.NDArray[np.int16], precision: str = FULL
) -> tuple[Quality, npt.NDArray[np.float64]]:
    """Quality on token rows, and the usage of every expert, (layers, experts)."""
    usage = np.zeros((twin.spec.layers, twin.spec.experts))
    nats, tokens, size = 0.0, 0, 0
    for row in rows:
        gates: list[Gate] = []
        nats += float(next_token_nll(score(twin, row, precision, gates), row).sum())
        usage += [np.bincount(gate.experts.ravel(), minlength=twin.spec.experts) for gate in gates]
        tokens += len(row) - 1
        size += len(tokenizer.decode(row[1:].tolist()).encode())
    quality = Quality(nats_per_token=nats / tokens, bytes_per_token=size / tokens)
    return quality, usage / usage.sum(axis=1, keepdims=True)


def distance(usages: Mapping[str, npt.NDArray[np.float64]]) -> npt.NDArray[np.float64]:
    """Mean total variation over all pairs of domains, per layer."""
    pairs = itertools.combinations(usages.values(), 2)
    apart = np.stack([np.abs(a - b).sum(axis=1) / 2 for a, b in pairs])  # (pairs, layers)
    mean: npt.NDArray[np.float64] = apart.mean(axis=0)
    return mean


def report(directory: Path, rows_per_domain: int) -> Iterator[str]:
    """The lines that the command prints."""
    twin, tokenizer, prompts = Twin.load(directory), read_tokenizer(directory), Prompts.load(directory)
    rows = {
        domain: prompts.rows[domain][:: max(1, len(prompts.rows[domain]) // rows_per_domain)]
        for domain in prompts.domains
    }
    usages: dict[str, npt.NDArray[np.float64]] = {}
    nats: dict[str, float] = {}
    yield f"{'held-out text':<14}{'tokens':>8}{'perplexity':>12}{'bits/byte':>11}{'bytes/token':>13}"
    for domain, text in rows.items():
        quality, usages[domain] = evaluate(twin, tokenizer, text)
        nats[domain] = quality.nats_per_token
        yield (
            f"{domain:<14}{text.size:>8}{quality.perplexity:>12.2f}{quality.bits_per_byte:>11.3f}"
            f"{quality.bytes_per_token:>13.2f}"
        )
    yield ""
    yield from _shares(twin.spec, usages)
    overall = np.mean(list(usages.values()), axis=0)
    yield ""
    yield f"even use would be {100 / twin.spec.experts:.1f} % each"
    yield f"least used expert of all layers, all domains together: {100 * overall.min():.2f} %"
    yield f"least used expert of any domain: {100 * min(usage.min() for usage in usages.values()):.2f} %"
    apart = distance(usages)
    spread = f"{apart.min():.3f} to {apart.max():.3f}, mean {apart.mean():.3f}"
    yield f"distance between two domains' usage over the layers: {spread}"
    yield ""
    yield "loss of precision: NLL relative to full"
    for precision in PRECISIONS[1:]:
        cells = []
        for domain, text in rows.items():
            lossy = evaluate(twin, tokenizer, text, precision)[0].nats_per_token
            cells.append(f"{domain} {100 * (lossy / nats[domain] - 1):+.3f} %")
        yield f"{precision:<6}" + "   ".join(cells)


def _shares(spec: ModelSpec, usages: Mapping[str, npt.NDArray[np.float64]]) -> Iterator[str]:
    """The share of every expert where they fit on a line, else how many are in use and how unevenly."""
    shown = sorted({round(part * (spec.layers - 1)) for part in (0.0, 0.25, 0.5, 0.75, 1.0)})
    few = spec.experts <= MOST_SHOWN
    columns = [f"e{expert}" for expert in range(spec.experts)] if few else ["effective", "used", "least", "most"]
    if few:
        yield "share of each expert, % of the tokens' choices"
    else:
        yield "effective number of experts (exp of the entropy), number used, least and most used one's share in %"
    wide = 6 if few else 11
    yield f"{'layer':<6}{'domain':<14}" + "".join(f"{name:>{wide}}" for name in columns)
    for layer in shown:
        for domain, usage in usages.items():
            share = usage[layer]
            if few:
                cells = [f"{100 * each:.1f}" for each in share]
            else:
                entropy = -float(np.sum(share * np.log(np.maximum(share, 1e-12))))
                counted = (f"{math.exp(entropy):.1f}", f"{np.count_nonzero(share)}")
                cells = [*counted, f"{100 * share.min():.2f}", f"{100 * share.max():.2f}"]
            yield f"{layer:<6}{domain:<14}" + "".join(f"{cell:>{wide}}" for cell in cells)


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m agents.models.evaluate", description="Quality of a stored twin.")
    parser.add_argument("model", nargs="?", choices=sorted(TWINS), default="mixtral-8x7b")
    parser.add_argument("--directory", type=Path, help="where the twin lies; default: beside this program")
    parser.add_argument("--rows", type=positive, default=ROWS, help="held-out rows per domain")
    chosen = parser.parse_args()
    try:
        for line in report(chosen.directory or twin_directory(chosen.model), chosen.rows):
            print(line, flush=True)
    except TestbedError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
