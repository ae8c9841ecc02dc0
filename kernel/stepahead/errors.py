"""The kernel's errors: who broke the rules, where, and the ways out.

`ConfigError` and `TableError`: a declaration is wrong. `HostContractError` and its child
`IllegalTransition`: the driver reported something that cannot have happened; the kernel is
unchanged and may go on. `KernelBug`: we did it; stop and report.
"""

from __future__ import annotations


class StepaheadError(Exception):
    """Root of every error of the project."""


class ConfigError(StepaheadError):
    """An option is out of range."""

    def __init__(self, *, option: str, value: object, expected: str) -> None:
        self.option = option
        self.value = value
        self.expected = expected
        super().__init__(f"{option}={value!r} is not usable; give {expected}")


class TableError(StepaheadError):
    """A state table is not well formed."""


class HostContractError(StepaheadError):
    """The host reported an event that contradicts what it reported before; nothing changed."""


class IllegalTransition(HostContractError):
    """A state machine has no edge for a trigger; nothing changed."""

    def __init__(
        self, *, machine: str, ident: str, state: str, trigger: str, accepts: tuple[str, ...]
    ) -> None:
        self.machine = machine
        self.ident = ident
        self.state = state
        self.trigger = trigger
        self.accepts = accepts
        options = ", ".join(accepts) if accepts else "nothing, it has ended"
        super().__init__(
            f"{machine} {ident} is {state} and cannot take {trigger}; it accepts {options}"
        )


class KernelBug(StepaheadError):
    """A check inside the kernel failed: the state is not to be trusted any more."""
