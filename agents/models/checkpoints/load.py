"""A directory with ``config.json`` and safetensors files becomes a model that servers can share.

The layout is known by ``model_type``.  Names and shapes of all tensors are checked against the configuration; what
every server holds is read, and the experts are left where they are until one is used.

Beside the checkpoint may lie, in the formats of a twin, ``heldout.safetensors`` (prompts as token numbers) and
``calibration.json``; ``neutral.py`` says what stands in for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from agents.models.calibrate import CALIBRATION_FILE, Calibration
from agents.models.checkpoints import deepseek_v2, mixtral, olmoe, qwen2_moe, switch
from agents.models.checkpoints.config import CONFIG_FILE, Config
from agents.models.checkpoints.decoder import Decoder
from agents.models.checkpoints.encoder_decoder import EncoderDecoder
from agents.models.checkpoints.layout import idle_tensors
from agents.models.checkpoints.neutral import DOMAIN, neutral_calibration, random_prompts
from agents.models.checkpoints.tensors import Tensors
from agents.models.profile import ModelProfile
from agents.models.prompts import PROMPTS_FILE, Prompts
from testbed.errors import TestbedError, did_you_mean

Loader = Callable[[Config, Tensors, str], tuple[Decoder | EncoderDecoder, ModelProfile]]

LAYOUTS: Mapping[str, Loader] = {
    "deepseek_v2": deepseek_v2.load,
    "mixtral": mixtral.load,
    "olmoe": olmoe.load,
    "qwen2_moe": qwen2_moe.load,
    "switch_transformers": switch.load,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A loaded checkpoint with all that a run needs besides."""

    arithmetic: Decoder | EncoderDecoder
    profile: ModelProfile
    calibration: Calibration
    prompts: Prompts
    tensors: Tensors  # which also counts what has been read
    summary: str  # one line: what it is, and what stands in for what it lacks


def is_checkpoint(directory: Path) -> bool:
    """Whether a directory looks like one."""
    return (directory / CONFIG_FILE).is_file()


def load_checkpoint(directory: Path) -> Checkpoint:
    """TestbedError naming the file and the field or tensor that is missing, wrong or not supported."""
    config = Config.read(directory)
    kind = config.raw("model_type")
    if not isinstance(kind, str) or kind not in LAYOUTS:
        raise config.error(
            "model_type", f"is {kind!r}{did_you_mean(str(kind), LAYOUTS)}; known are {', '.join(LAYOUTS)}"
        )
    tensors = Tensors.open(directory)
    tensors.check_memory(is_expert)
    arithmetic, profile = LAYOUTS[kind](config, tensors, directory.resolve().name)
    tensors.refuse_unknown(idle=switch.idle_tensors(config) if kind == switch.KIND else idle_tensors(config))
    spec = arithmetic.spec
    prompts = _prompts(directory, spec.vocab, arithmetic.positions)
    calibration = _calibration(directory, prompts.domains, layers=spec.layers, experts=spec.experts)
    return Checkpoint(
        arithmetic=arithmetic,
        profile=profile,
        calibration=calibration,
        prompts=prompts,
        tensors=tensors,
        summary=_summary(directory, kind, prompts),
    )


def is_expert(name: str) -> bool:
    """Whether a tensor belongs to one of the experts that tokens choose; all layouts name them so."""
    return ".experts." in name


def _prompts(directory: Path, vocab: int, positions: int | None) -> Prompts:
    if not (directory / PROMPTS_FILE).is_file():
        return random_prompts(vocab, positions=positions)
    prompts = Prompts.load(directory)
    for domain, rows in prompts.rows.items():
        if rows.max() >= vocab:
            raise TestbedError(
                f"{directory / PROMPTS_FILE}: tensor {domain} holds token {rows.max()}; the model has {vocab}"
            )
    return prompts


def _calibration(directory: Path, domains: tuple[str, ...], *, layers: int, experts: int) -> Calibration:
    path = directory / CALIBRATION_FILE
    if not path.is_file():
        return neutral_calibration(directory, domains=domains, layers=layers, experts=experts)
    calibration = Calibration.load(directory)
    if calibration.usage.shape[1:] != (layers, experts):
        raise TestbedError(
            f"{path}: usage covers {calibration.usage.shape[1:]} layers and experts, the model has {(layers, experts)}"
        )
    return calibration


def _summary(directory: Path, kind: str, prompts: Prompts) -> str:
    text = f"checkpoint of {kind}"
    if prompts.domains == (DOMAIN,):
        text += f"; no {PROMPTS_FILE}: prompts are random tokens, so that quality means nothing"
    if not (directory / CALIBRATION_FILE).is_file():
        text += f"; no {CALIBRATION_FILE}: all experts count as used alike, and only full precision can be used"
    return text
