"""Trains a twin on two CPU cores, a second or two per step; the same seed and steps give the same run.

    python -m agents.models.corpus                                            # fetch the text, once
    python -m agents.models.train mixtral-8x7b --seed 0 --steady N --decay M  # of the stored weights: see model.json

The learning rate rises, stays, and falls to zero over the last ``--decay`` steps, so a steady run may be stopped at any
checkpoint and finished from there (``--resume``); the result is that of one run with the same numbers.  Progress
counts steps and never looks at a clock: the process may be paused and continued.

The loss is next-token cross entropy plus a small load-balancing term, which keeps all experts in use and is too weak
to stop them from specialising.  The validation curve (calibration documents, which are never trained on) is stored
in ``model.json``; nothing is chosen by it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as functional
from safetensors.torch import load_file, save_file
from torch import Tensor

from agents.models import corpus, network
from agents.models.arguments import counting, positive
from agents.models.network import Layer, Network
from agents.models.optimizer import Muon
from agents.models.prompts import cut_rows
from agents.models.spec import TWINS, ModelSpec, twin_directory
from testbed.errors import TestbedError

#: Rows of every domain in the validation curve.
VALIDATION_ROWS = 12
Streams = list[npt.NDArray[np.int16]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Everything that decides the trained weights, besides the text."""

    seed: int
    steady: int  # steps before the learning rate falls
    decay: int  # steps while it falls to zero
    rows: int = 28  # sequences per step, the same number from every domain
    warmup: int = 40
    peak_rate: float = 0.02  # of matrices (Muon)
    other_rate: float = 4e-3  # of embedding, gates and norms (AdamW)
    weight_decay: float = 0.02
    balance: float = 0.01  # weight of the load-balancing loss
    clip: float = 1.0

    @property
    def steps(self) -> int:
        """All steps."""
        return self.steady + self.decay

    def share_of_rate(self, step: int) -> float:
        """Trapezoid: up during warm-up, flat, linearly down.

        >>> recipe = Recipe(seed=0, steady=1000, decay=100)
        >>> [round(recipe.share_of_rate(step), 2) for step in (0, 39, 999, 1050, 1099)]
        [0.03, 1.0, 1.0, 0.5, 0.01]
        """
        falling = (self.steps - step) / self.decay if self.decay else 1.0
        return min(1.0, (step + 1) / self.warmup, falling)


class State:
    """What changes during training: both optimisers, and the number of steps done."""

    def __init__(self, network: Network, recipe: Recipe) -> None:
        named = list(network.named_parameters())
        matrices = [p for name, p in named if p.ndim >= 2 and not name.endswith(("embedding", "gate"))]
        others = [p for name, p in named if not any(p is each for each in matrices)]
        apart = {p: count for name, p in named if (count := side_by_side(name, network.spec)) > 1}
        decay = recipe.weight_decay
        self.rates = (recipe.peak_rate, recipe.other_rate)
        self.optimizers = (
            Muon(matrices, side_by_side=apart, rate=recipe.peak_rate, weight_decay=decay),
            torch.optim.AdamW(others, recipe.other_rate, betas=(0.9, 0.95), weight_decay=decay, fused=True),
        )
        self.step = 0


def side_by_side(name: str, spec: ModelSpec) -> int:
    """How many matrices the columns of a parameter hold."""
    if name.endswith("qkv"):
        return 3
    return 2 if name.endswith(("experts_in", "shared_in")) and spec.activation == "swiglu" else 1


def batch(streams: Streams, recipe: Recipe, step: int, length: int) -> Tensor:
    """The rows of one step: a function of seed and step alone, so that a resumed run sees what it would have seen."""
    draw = np.random.default_rng((recipe.seed, step))
    rows = []
    for row in range(recipe.rows):
        stream = streams[row % len(streams)]
        start = int(draw.integers(0, len(stream) - length))
        rows.append(stream[start : start + length])
    return torch.from_numpy(np.stack(rows).astype(np.int64))


def train(network: Network, streams: Streams, recipe: Recipe, state: State) -> Iterator[Progress]:
    """One optimiser step at a time."""
    spec = network.spec
    for step in range(state.step, recipe.steps):
        for optimizer, rate in zip(state.optimizers, state.rates, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = rate * recipe.share_of_rate(step)
        rows = batch(streams, recipe, step, spec.context + 1)
        logits, balance, counts = network(rows[:, :-1])
        loss = functional.cross_entropy(logits.reshape(-1, spec.vocab), rows[:, 1:].reshape(-1))
        (loss + recipe.balance * balance).backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), recipe.clip)
        for optimizer in state.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        state.step = step + 1
        share = torch.stack(counts) / counts[0].sum()
        yield Progress(step + 1, loss.item(), balance.item(), share.min().item())


@torch.no_grad()
def validate(network: Network, rows: Sequence[npt.NDArray[np.int16]]) -> list[float]:
    """Nats per token on the rows of every domain."""
    found = []
    for domain in rows:
        tokens = torch.from_numpy(domain.astype(np.int64))
        logits, _, _ = network(tokens[:, :-1])
        found.append(functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).item())
    return found


@dataclass(frozen=True, slots=True)
class Progress:
    """What one step reports."""

    step: int
    loss: float
    balance: float
    least_share: float


def save_checkpoint(path: Path, network: Network, state: State) -> None:
    """Weights and the optimisers' moments, as plain tensors."""
    tensors: dict[str, Tensor] = {"step": torch.tensor(state.step)}
    names: dict[Tensor, str] = {parameter: name for name, parameter in network.named_parameters()}
    tensors |= {f"weight/{name}": parameter.detach() for parameter, name in names.items()}
    for optimizer in state.optimizers:
        for owner, moments in optimizer.state.items():
            tensors |= {f"{key}/{names[owner]}": value for key, value in moments.items()}
    partial = path.with_suffix(".partial")
    save_file(tensors, partial)
    partial.replace(path)


def load_checkpoint(path: Path, network: Network, state: State) -> None:
    """Continue exactly where :func:`save_checkpoint` stood."""
    if not path.is_file():
        raise TestbedError(f"{path}: no such checkpoint")
    tensors = load_file(path)
    state.step = int(tensors.pop("step"))
    parameters = dict(network.named_parameters())
    owner = {
        id(parameter): optimizer
        for optimizer in state.optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    with torch.no_grad():
        for key, tensor in tensors.items():
            kind, name = key.split("/", 1)
            if name not in parameters:
                raise TestbedError(f"{path}: {name} is not a parameter of {network.spec.name}")
            parameter = parameters[name]
            if kind == "weight":
                parameter.copy_(tensor)
            else:
                owner[id(parameter)].state[parameter][kind] = tensor.clone()


def export(directory: Path, network: Network, recipe: Recipe, facts: dict[str, object]) -> None:
    """Write ``weights.safetensors`` (float16) and ``model.json``."""
    directory.mkdir(parents=True, exist_ok=True)
    half = {name: parameter.detach().to(torch.float16) for name, parameter in network.named_parameters()}
    save_file(half, directory / "weights.safetensors")
    (directory / "weights.safetensors").chmod(0o644)  # safetensors makes files that only their owner reads
    written = {"spec": asdict(network.spec), "training": asdict(recipe) | facts | {"torch": torch.__version__}}
    (directory / "model.json").write_text(json.dumps(written, indent=2) + "\n")


def prepare(directory: Path, spec: ModelSpec) -> tuple[Streams, Streams, str]:
    """Training tokens and validation rows of every domain, and the fingerprint of the text; stores the tokenizer."""
    everything = corpus.documents()
    training, aside = corpus.texts(everything, "train"), corpus.texts(everything, "calibration")
    tokenizer = corpus.train_tokenizer(training, spec.vocab)
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"), pretty=False)
    streams = [corpus.encode(tokenizer, training[domain]) for domain in corpus.DOMAINS]
    rows = [
        cut_rows(corpus.encode(tokenizer, aside[domain]), VALIDATION_ROWS, spec.context + 1)
        for domain in corpus.DOMAINS
    ]
    return streams, rows, corpus.fingerprint(everything)


def compile_layers() -> None:
    """Fuse what is many small operations; needs a C++ compiler."""
    network.attend = torch.compile(network.attend, dynamic=False)
    Layer.route = torch.compile(Layer.route, dynamic=False)  # type: ignore[method-assign]


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m agents.models.train", description=__doc__.splitlines()[0])
    parser.add_argument("model", choices=sorted(TWINS))
    parser.add_argument("--seed", type=counting, default=0)
    parser.add_argument("--steady", type=counting, default=1600, help="steps before the learning rate falls")
    parser.add_argument("--decay", type=positive, default=800, help="steps while it falls to zero")
    parser.add_argument("--resume", type=Path, help="a checkpoint to continue from")
    parser.add_argument("--checkpoints", type=Path, help="where to put them; default: .corpus/checkpoints/MODEL")
    parser.add_argument("--every", type=positive, default=100, help="steps between checkpoints and validations")
    parser.add_argument("--threads", type=positive, default=2)
    parser.add_argument("--output", type=Path, help="where to put the twin; default: beside this program")
    parser.add_argument("--no-compile", action="store_true", help="do without torch.compile (needs no C++ compiler)")
    chosen = parser.parse_args()
    if chosen.resume and not chosen.resume.is_file():
        parser.error(f"--resume {chosen.resume}: no such file")
    spec = TWINS[chosen.model]
    checkpoints = chosen.checkpoints or corpus.CACHE / "checkpoints" / spec.name
    output = chosen.output or twin_directory(spec.name)
    torch.set_num_threads(chosen.threads)
    torch.manual_seed(chosen.seed)
    recipe = Recipe(seed=chosen.seed, steady=chosen.steady, decay=chosen.decay)
    twin = Network(spec)
    state = State(twin, recipe)
    try:
        corpus.fetch()
        streams, aside, fingerprint = prepare(output, spec)
        if chosen.resume:
            load_checkpoint(chosen.resume, twin, state)
    except TestbedError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    if not chosen.no_compile:
        compile_layers()
    checkpoints.mkdir(parents=True, exist_ok=True)
    print("tokens per domain:", [len(stream) for stream in streams], flush=True)
    smooth, curve = 0.0, []
    for progress in train(twin, streams, recipe, state):
        smooth = progress.loss if not smooth else 0.95 * smooth + 0.05 * progress.loss
        if progress.step % 20 == 0:
            print(
                f"step {progress.step}/{recipe.steps} loss {smooth:.4f} balance {progress.balance:.3f} "
                f"least share {progress.least_share:.3f}",
                flush=True,
            )
        if progress.step % chosen.every == 0 or progress.step == recipe.steps:
            nats = [round(value, 4) for value in validate(twin, aside)]
            curve.append({"step": progress.step, "nats": dict(zip(corpus.DOMAINS, nats, strict=True))})
            print(f"step {progress.step} validation, nats per token:", curve[-1]["nats"], flush=True)
            save_checkpoint(checkpoints / f"step-{progress.step:05d}.safetensors", twin, state)
    facts = {
        "steps_done": state.step,
        "tokens": state.step * recipe.rows * spec.context,
        "corpus_fingerprint": fingerprint,
        "validation": curve,
    }
    export(output, twin, recipe, facts)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
