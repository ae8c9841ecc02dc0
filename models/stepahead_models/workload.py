"""The requests of a run as columns, in the order of their arrival."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stepahead_models.tokens import Ints, Prompts


def no_keys(_index: int) -> Ints | None:
    """Return that nothing is known about the content of a prompt."""
    return None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Workload:
    """What clients will do, and how long their answers really are.

    Every column has shape ``(requests,)``.

    Args:
        prompts: ids, prompt lengths and prompt tokens.
        arrivals_ns: never decreasing; ignored in a closed loop.
        max_tokens: the limit told to the kernel.
        eos_at: output position, counted from 1, of the EOS token; -1 for never. The kernel is not
            told.
        cancel_after_ns: the client leaves so long after its arrival; -1 for never.
        cancel_after_tokens: the client leaves once this output token reached it; -1 for never.
        priorities: smaller is more urgent.
        block_keys: content identities of a request's full prompt blocks, or None.
    """

    prompts: Prompts
    arrivals_ns: Ints
    max_tokens: Ints
    eos_at: Ints
    cancel_after_ns: Ints
    cancel_after_tokens: Ints
    priorities: Ints
    block_keys: Callable[[int], Ints | None] = no_keys

    def __len__(self) -> int:
        """Count the requests."""
        return len(self.arrivals_ns)

    @property
    def request_ids(self) -> tuple[str, ...]:
        """Labels of the requests."""
        return self.prompts.request_ids
