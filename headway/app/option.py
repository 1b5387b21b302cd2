"""One option of `headway serve`, as it is declared."""

from collections.abc import Callable
from typing import NamedTuple

Value = str | int | float | bool | tuple[str, ...] | None


class Option(NamedTuple):
    """One setting; `read` turns text or a file's value into the field's value.

    `read` raises ValueError whose message completes "<where>: ...".
    """

    name: str  # the flag without its dashes
    section: str
    read: Callable[[object], Value]
    help: str
    unit: str = ""
    default: str = ""  # how the docs say it, where the struct's own default does not
    target: str = ""  # the struct's field, where its name is not the flag's
    takes_many: bool = False
    is_switch: bool = False

    @property
    def key(self) -> str:
        """Name in a file and in what `merge` is given."""
        return self.name.replace("-", "_")

    @property
    def field(self) -> str:
        """Name in the section's struct."""
        return self.target or self.key

    @property
    def variable(self) -> str:
        """Name in the environment."""
        return f"HEADWAY_{self.key.upper()}"
