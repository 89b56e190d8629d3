"""What agents compute with: a twin with all that lies beside its weights, or the trace of a large model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from agents.models.arithmetic import Arithmetic
from agents.models.calibrate import Calibration
from agents.models.profile import ModelProfile
from agents.models.prompts import Prompts
from agents.models.remember import MEMORY_BYTES, Remembering
from agents.models.replay import TRACE_SUFFIX, Replay
from agents.models.twin import Twin


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model with its sizes, its measured facts and what users ask of it."""

    directory: Path  # of a twin; the file of a trace
    twin: Arithmetic
    profile: ModelProfile
    calibration: Calibration
    prompts: Prompts

    @property
    def summary(self) -> str:
        """What a trace holds and what was left out of it; nothing for a twin."""
        return self.twin.summary if isinstance(self.twin, Replay) else ""

    @classmethod
    def load(cls, path: Path) -> Model:
        """A twin's directory or a trace (``.jsonl``).  TestbedError naming the file when one is missing or wrong."""
        if path.suffix == TRACE_SUFFIX:
            replay = Replay.load(path)
            return cls(
                directory=path,
                twin=replay,
                profile=replay.profile,
                calibration=replay.calibration(),
                prompts=replay.prompts,
            )
        twin = Twin.load(path)
        return cls(
            directory=path,
            twin=twin,
            profile=ModelProfile.load(twin.spec.name),
            calibration=Calibration.load(path),
            prompts=Prompts.load(path),
        )

    def remembering(self, memory_bytes: int = MEMORY_BYTES) -> Model:
        """The same, which computes nothing twice; a trace has nothing to compute."""
        if isinstance(self.twin, Replay):
            return self
        return replace(self, twin=Remembering(self.twin, memory_bytes=memory_bytes))
