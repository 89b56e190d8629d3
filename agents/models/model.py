"""What agents compute with: a twin and what lies beside its weights, a published checkpoint, or a recorded trace."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from agents.models.arithmetic import Arithmetic
from agents.models.calibrate import Calibration
from agents.models.checkpoints.load import is_checkpoint, load_checkpoint
from agents.models.exits import EXITS_FILE, ExitHeads
from agents.models.facts import FACTS_FILE, ExpertFacts
from agents.models.loader import SPEC_FILE
from agents.models.profile import ModelProfile
from agents.models.prompts import Prompts
from agents.models.remember import MEMORY_BYTES, Remembering
from agents.models.replay import TRACE_SUFFIX, Replay
from agents.models.together import check_together
from agents.models.twin import Twin
from testbed.errors import TestbedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model with its sizes, its measured facts and what users ask of it."""

    directory: Path  # of a twin or checkpoint; the file of a trace
    twin: Arithmetic
    profile: ModelProfile
    calibration: Calibration
    prompts: Prompts
    facts: ExpertFacts | None = None  # of single experts, where they were measured
    exits: ExitHeads | None = None  # heads for leaving early, where they were fitted
    summary: str = ""  # what a trace or a checkpoint holds, and what stands in for what it lacks; nothing for a twin

    @classmethod
    def load(cls, path: Path) -> Model:
        """A twin's or a checkpoint's directory, or a trace (``.jsonl``).

        TestbedError naming the file, and field or tensor, when one is missing or wrong.
        """
        if path.suffix == TRACE_SUFFIX:
            replay = Replay.load(path)
            return cls(
                directory=path,
                twin=replay,
                profile=replay.profile,
                calibration=replay.calibration(),
                prompts=replay.prompts,
                summary=replay.summary,
            )
        if is_checkpoint(path) and not (path / SPEC_FILE).is_file():
            checkpoint = load_checkpoint(path)
            return cls(
                directory=path,
                twin=checkpoint.arithmetic,
                profile=checkpoint.profile,
                calibration=checkpoint.calibration,
                prompts=checkpoint.prompts,
                summary=checkpoint.summary,
            )
        if path.is_dir() and not (path / SPEC_FILE).is_file():
            raise TestbedError(f"{path}: neither a twin ({SPEC_FILE}) nor a published checkpoint (config.json)")
        twin = Twin.load(path)
        model = cls(
            directory=path,
            twin=twin,
            profile=ModelProfile.load(twin.spec.name),
            calibration=Calibration.load(path),
            prompts=Prompts.load(path),
            facts=ExpertFacts.load(path) if _beside(path / FACTS_FILE) else None,
            exits=ExitHeads.load(path) if _beside(path / EXITS_FILE) else None,
        )
        check_together(
            path,
            spec=twin.spec,
            profile=model.profile,
            calibration=model.calibration,
            prompts=model.prompts,
            facts=model.facts,
            exits=model.exits,
        )
        return model

    def remembering(self, memory_bytes: int = MEMORY_BYTES) -> Model:
        """The same, which computes nothing twice; a trace has nothing to compute."""
        if isinstance(self.twin, Replay):
            return self
        return replace(self, twin=Remembering(self.twin, memory_bytes=memory_bytes))


def _beside(path: Path) -> bool:
    """Whether there is anything of that name; what is no file is refused when it is read."""
    return path.exists() or path.is_symlink()
