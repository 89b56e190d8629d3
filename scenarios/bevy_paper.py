"""Does interleaving requests beat prediction on one machine that loads its experts from storage?  Bevy's question.

Tokens/s of every scheduler over concurrency and cache size, on the profiles of three models; what device and channel
did meanwhile; and the paper's maxima beside ours.  ``docs/bevy.md`` explains the rows and says what bounds them.

python scenarios/bevy_paper.py            a few minutes on two cores
python scenarios/bevy_paper.py --quick    seconds, for a look
python scenarios/bevy_paper.py --real     the same schedulers on this machine's own drive
python scenarios/bevy_paper.py --help
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """What is run: every combination."""

    models: tuple[str, ...] = ("mixtral-8x7b", "qwen1.5-moe-a2.7b", "switch-base-8")
    concurrency: tuple[int, ...] = (1, 4, 16, 32)
    fractions: tuple[float, ...] = (0.5, 0.7, 0.9)  # of all experts that fast memory holds
    caches: tuple[str, ...] = ("lru", "next-use")
    prompt_tokens: int = 12
    output_tokens: tuple[int, int] = (8, 24)  # each request's, drawn evenly
    warm_per_request: int = 3  # tokens for each concurrent request before measuring begins
    tokens_per_request: int = 10  # and at its end


DEFAULT = Grid()
QUICK = Grid(models=("mixtral-8x7b",), concurrency=(1, 4), fractions=(0.7,), caches=("lru",), tokens_per_request=6)

if __name__ == "__main__":
    import sys

    from analysis.offloading import draw
    from orchestration.bevy_paper import main

    sys.exit(main(sys.argv[1:], default=DEFAULT, quick=QUICK, draw=draw))
