"""``config.json`` of a checkpoint, field by field, with errors that name the field.

Fields that nobody asks for are ignored: most say how the model was trained.  Fields whose value would change what is
computed, and which are not supported, are asked for and refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec

from testbed.errors import TestbedError

CONFIG_FILE = "config.json"
MAX_CONFIG_BYTES = 2**20
#: No checkpoint has more of anything.
LARGEST = 10_000_000
MOST_BLOCKS = 10_000
#: Far beyond any base or factor, and well within float32.
LARGEST_NUMBER = 1e30


class Config:
    """The fields of one file; null counts as absent."""

    def __init__(self, path: Path, values: Mapping[str, Any]) -> None:
        self.path = path
        self._values = values

    @classmethod
    def read(cls, directory: Path) -> Self:
        """TestbedError for a file that is missing, too long or no JSON, and for a quantised checkpoint."""
        path = directory / CONFIG_FILE
        if not path.is_file():
            raise TestbedError(f"{path}: no such file; it belongs to the checkpoint")
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise TestbedError(f"{path}: longer than {MAX_CONFIG_BYTES} bytes, which no configuration is")
        try:
            config = cls(path, msgspec.json.decode(path.read_bytes(), type=dict[str, Any]))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise TestbedError(f"{path}: {error}") from error
        config.must_be("quantization_config", (None,), "get the checkpoint unquantised; experts are quantised here")
        return config

    def error(self, field: str, problem: str) -> TestbedError:
        """What is wrong with a field, ready to be raised."""
        return TestbedError(f"{self.path}: {field} {problem}")

    def given(self, field: str) -> bool:
        """Whether the field is there and not null."""
        return self._values.get(field) is not None

    def raw(self, field: str) -> Any:
        """The value as it stands, None where it is absent."""
        return self._values.get(field)

    def count(self, field: str, default: int | None = None, *, least: int = 1, most: int = LARGEST) -> int:
        """A whole number from ``least`` to ``most``; required where there is no default."""
        value = self._present(field, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self.error(field, f"is {value!r}; it must be a whole number from {least} to {most}")
        return value

    def number(self, field: str, default: float | None = None) -> float:
        """A number above zero; required where there is no default."""
        value = self._present(field, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= LARGEST_NUMBER:
            raise self.error(field, f"is {value!r}; it must be a number above 0")
        return float(value)

    def flag(self, field: str, default: bool) -> bool:
        """True or false."""
        value = self._present(field, default)
        if not isinstance(value, bool):
            raise self.error(field, f"is {value!r}; it must be true or false")
        return value

    def must_be(self, field: str, supported: Sequence[Any], advice: str = "") -> Any:
        """One of the supported values, None standing for an absent field."""
        value = self._values.get(field)
        if not any(type(value) is type(each) and value == each for each in supported):
            known = ", ".join("absent" if each is None else repr(each) for each in supported)
            raise self.error(field, f"is {value!r}; supported: {known}" + (f" ({advice})" if advice else ""))
        return value

    def table(self, field: str) -> Config | None:
        """A nested table, None where it is absent."""
        value = self._values.get(field)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(field, f"is {value!r}; it must be a table")
        return _Nested(self.path, value, field)

    def _present(self, field: str, default: Any) -> Any:
        value = self._values.get(field)
        if value is None:
            value = default
        if value is None:
            raise self.error(field, "is missing")
        return value


class _Nested(Config):
    """A table within the file, whose fields are named with the table's name."""

    def __init__(self, path: Path, values: Mapping[str, Any], name: str) -> None:
        super().__init__(path, values)
        self._name = name

    def error(self, field: str, problem: str) -> TestbedError:
        return super().error(f"{self._name}.{field}", problem)
