"""stepahead: a state-machine kernel for overlap scheduling on an NPU."""

from stepahead import commands, events
from stepahead.config import BatchPreference, KernelConfig, SelectionTiming, WaitingOrder
from stepahead.errors import (
    ConfigError,
    HostContractError,
    IllegalTransition,
    KernelBug,
    StepaheadError,
    TableError,
)
from stepahead.kernel import Kernel

__all__ = [
    "BatchPreference",
    "ConfigError",
    "HostContractError",
    "IllegalTransition",
    "Kernel",
    "KernelBug",
    "KernelConfig",
    "SelectionTiming",
    "StepaheadError",
    "TableError",
    "WaitingOrder",
    "commands",
    "events",
]
