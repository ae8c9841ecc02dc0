"""The scheduling loops by name.

Owns the names. When a loop selects a batch is decided elsewhere.
"""

from enum import Enum


class UnknownLoop(KeyError):
    """No scheduling loop has this name.

    Attributes:
        name: what was asked for.
        known: the names that exist.
    """

    def __init__(self, name: str, known: tuple[str, ...]) -> None:
        super().__init__(name)
        self.name = name
        self.known = known

    def __str__(self) -> str:
        # A KeyError would print the repr of its argument, quotes and all.
        return f"scheduling loop {self.name!r} is not known; give one of {', '.join(self.known)}"


class SchedulingLoop(Enum):
    """Whether the next batch is prepared after the results of the last one, or during its run.

    ``EAGER`` and ``OVERLAP`` are the product's. ``JUST_IN_TIME`` is ours: overlap that selects as
    late as preparation can still be hidden.

    Source:
        furiosa-llm 2026.4.0 package, configuration types.
    """

    EAGER = "eager"
    OVERLAP = "overlap"
    JUST_IN_TIME = "just-in-time"

    @classmethod
    def _missing_(cls, value: object) -> "SchedulingLoop | None":
        if isinstance(value, str):
            wanted = value.lower().replace("_", "-")
            for loop in cls:
                if loop.value == wanted:
                    return loop
        return None

    @classmethod
    def named(cls, name: str) -> "SchedulingLoop":
        """Return the loop of this name, whatever its case, with ``-`` or ``_``.

        Raises:
            UnknownLoop: no loop has this name.
        """
        try:
            return cls(name)
        except ValueError:
            raise UnknownLoop(name, tuple(loop.value for loop in cls)) from None

    @property
    def compatibility(self) -> "SchedulingLoop":
        """The loop whose rows of the compatibility table apply: just-in-time has overlap's."""
        return SchedulingLoop.EAGER if self is SchedulingLoop.EAGER else SchedulingLoop.OVERLAP
