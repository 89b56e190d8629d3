"""Trains the twin of Mixtral-8x7B on two CPU cores, a second per step; the same seed and steps give the same run.

    python -m agents.models.corpus                                 # fetch the text, once
    python -m agents.models.train --seed 0 --steady N --decay M    # N and M of the stored weights: model.json

The learning rate rises, stays, and falls to zero over the last ``--decay`` steps, so a steady run may be stopped at any
checkpoint and finished from there (``--resume``); the result is that of one run with the same numbers.  Progress
counts steps and never looks at a clock: the process may be paused and continued.

The loss is next-token cross entropy plus a small load-balancing term, which keeps all experts in use and is too weak
to stop them from specialising.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as functional
from safetensors.torch import load_file, save_file
from torch import Tensor

from agents.models import corpus
from agents.models.network import Layer, Network
from agents.models.spec import MIXTRAL_TWIN, ModelSpec
from testbed.errors import TestbedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Everything that decides the trained weights, besides the text."""

    seed: int
    steady: int  # steps before the learning rate falls
    decay: int  # steps while it falls to zero
    rows: int = 18  # sequences per step, the same number from every domain
    warmup: int = 100
    peak_rate: float = 2.5e-3
    weight_decay: float = 0.05
    balance: float = 0.01  # weight of the load-balancing loss
    clip: float = 1.0

    @property
    def steps(self) -> int:
        """All steps."""
        return self.steady + self.decay

    def learning_rate(self, step: int) -> float:
        """Trapezoid: up during warm-up, flat, linearly down.

        >>> recipe = Recipe(seed=0, steady=1000, decay=100)
        >>> [round(recipe.learning_rate(step) / recipe.peak_rate, 2) for step in (0, 99, 999, 1050, 1099)]
        [0.01, 1.0, 1.0, 0.5, 0.01]
        """
        falling = (self.steps - step) / self.decay if self.decay else 1.0
        return self.peak_rate * min(1.0, (step + 1) / self.warmup, falling)


def batch(streams: list[npt.NDArray[np.int16]], recipe: Recipe, step: int, length: int) -> Tensor:
    """The rows of one step: a function of seed and step alone, so that a resumed run sees what it would have seen."""
    draw = np.random.default_rng((recipe.seed, step))
    rows = []
    for row in range(recipe.rows):
        stream = streams[row % len(streams)]
        start = int(draw.integers(0, len(stream) - length))
        rows.append(stream[start : start + length])
    return torch.from_numpy(np.stack(rows).astype(np.int64))


def train(network: Network, streams: list[npt.NDArray[np.int16]], recipe: Recipe, state: State) -> Iterator[Progress]:
    """One optimiser step at a time."""
    spec = network.spec
    for step in range(state.step, recipe.steps):
        for group in state.optimizer.param_groups:
            group["lr"] = recipe.learning_rate(step)
        rows = batch(streams, recipe, step, spec.context + 1)
        logits, balance, counts = network(rows[:, :-1])
        loss = functional.cross_entropy(logits.reshape(-1, spec.vocab), rows[:, 1:].reshape(-1))
        (loss + recipe.balance * balance).backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), recipe.clip)
        state.optimizer.step()
        state.optimizer.zero_grad()
        state.step = step + 1
        share = torch.stack(counts) / counts[0].sum()
        yield Progress(step + 1, loss.item(), balance.item(), share.min().item())


@dataclass(slots=True)
class State:
    """What changes during training."""

    optimizer: torch.optim.AdamW
    step: int = 0


@dataclass(frozen=True, slots=True)
class Progress:
    """What one step reports."""

    step: int
    loss: float
    balance: float
    least_share: float


def save_checkpoint(path: Path, network: Network, state: State) -> None:
    """Weights and both moments of the optimiser, as plain tensors."""
    tensors = {"step": torch.tensor(state.step)}
    for name, parameter in network.named_parameters():
        tensors[f"weight/{name}"] = parameter.detach()
        moments = state.optimizer.state[parameter]
        tensors[f"first/{name}"], tensors[f"second/{name}"] = moments["exp_avg"], moments["exp_avg_sq"]
    partial = path.with_suffix(".partial")
    save_file(tensors, partial)
    partial.replace(path)


def load_checkpoint(path: Path, network: Network, state: State) -> None:
    """Continue exactly where :func:`save_checkpoint` stood."""
    if not path.is_file():
        raise TestbedError(f"{path}: no such checkpoint")
    tensors = load_file(path)
    state.step = int(tensors["step"])
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            parameter.copy_(tensors[f"weight/{name}"])
            state.optimizer.state[parameter] = {
                "step": torch.tensor(float(state.step)),
                "exp_avg": tensors[f"first/{name}"].clone(),
                "exp_avg_sq": tensors[f"second/{name}"].clone(),
            }


def export(directory: Path, network: Network, recipe: Recipe, step: int, fingerprint: str) -> None:
    """Write ``weights.safetensors`` (float16) and ``model.json``."""
    directory.mkdir(parents=True, exist_ok=True)
    half = {name: parameter.detach().to(torch.float16) for name, parameter in network.named_parameters()}
    save_file(half, directory / "weights.safetensors")
    (directory / "weights.safetensors").chmod(0o644)  # safetensors makes files that only their owner reads
    facts = {
        "spec": asdict(network.spec),
        "training": asdict(recipe)
        | {
            "steps_done": step,
            "tokens": step * recipe.rows * network.spec.context,
            "corpus_fingerprint": fingerprint,
            "torch": torch.__version__,
        },
    }
    (directory / "model.json").write_text(json.dumps(facts, indent=2) + "\n")


def prepare(directory: Path, spec: ModelSpec) -> tuple[list[npt.NDArray[np.int16]], str]:
    """Training tokens of every domain, and the fingerprint of the text; stores the tokenizer."""
    everything = corpus.documents()
    training = corpus.texts(everything, "train")
    tokenizer = corpus.train_tokenizer(training, spec.vocab)
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"), pretty=False)
    return [corpus.encode(tokenizer, training[domain]) for domain in corpus.DOMAINS], corpus.fingerprint(everything)


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m agents.models.train", description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steady", type=int, default=614, help="steps before the learning rate falls")
    parser.add_argument("--decay", type=int, default=200, help="steps while it falls to zero")
    parser.add_argument("--resume", type=Path, help="a checkpoint to continue from")
    parser.add_argument("--checkpoints", type=Path, default=corpus.CACHE / "checkpoints")
    parser.add_argument("--every", type=int, default=100, help="steps between checkpoints")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, default=corpus.TWIN_DIRECTORY)
    parser.add_argument("--no-compile", action="store_true", help="do without torch.compile (needs no C++ compiler)")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    torch.manual_seed(chosen.seed)
    recipe = Recipe(seed=chosen.seed, steady=chosen.steady, decay=chosen.decay)
    try:
        corpus.fetch()
        streams, fingerprint = prepare(chosen.output, MIXTRAL_TWIN)
        network = Network(MIXTRAL_TWIN)
        optimizer = torch.optim.AdamW(
            network.parameters(), recipe.peak_rate, betas=(0.9, 0.95), weight_decay=recipe.weight_decay, fused=True
        )
        state = State(optimizer)
        if chosen.resume:
            load_checkpoint(chosen.resume, network, state)
    except TestbedError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    if not chosen.no_compile:
        Layer.attend = torch.compile(Layer.attend, dynamic=False)  # type: ignore[method-assign]
        Layer.route = torch.compile(Layer.route, dynamic=False)  # type: ignore[method-assign]
    chosen.checkpoints.mkdir(parents=True, exist_ok=True)
    print("tokens per domain:", [len(stream) for stream in streams], flush=True)
    smooth = 0.0
    for progress in train(network, streams, recipe, state):
        smooth = progress.loss if not smooth else 0.95 * smooth + 0.05 * progress.loss
        if progress.step % 20 == 0:
            print(
                f"step {progress.step}/{recipe.steps} loss {smooth:.4f} balance {progress.balance:.3f} "
                f"least share {progress.least_share:.3f}",
                flush=True,
            )
        if progress.step % chosen.every == 0:
            save_checkpoint(chosen.checkpoints / f"step-{progress.step:05d}.safetensors", network, state)
    export(chosen.output, network, recipe, state.step, fingerprint)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
