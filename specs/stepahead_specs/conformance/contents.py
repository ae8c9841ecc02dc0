"""Which blocks of which requests must contain the same, whoever computed them.

Two blocks have equal content exactly if their tokens and all tokens before them are equal. Each
such content gets a number; a scheduler with prefix caching may share blocks of equal number.
"""

from __future__ import annotations

from collections.abc import Sequence


class Contents:
    """The contents of the full blocks of all requests, as far as their tokens are known."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._numbers: dict[tuple[int, tuple[int, ...]], int] = {}
        self._tokens: dict[int, list[int]] = {}
        self._prompts: dict[int, tuple[int, ...]] = {}
        self._keys: dict[int, list[int]] = {}

    def begin(self, request: int, prompt: Sequence[int]) -> None:
        """Take a new request."""
        self._tokens[request] = list(prompt)
        self._prompts[request] = tuple(prompt)
        self._keys[request] = []
        self._complete(request)

    def grow(self, request: int, token: int) -> None:
        """Take the next sampled token of a request."""
        self._tokens[request].append(token)
        self._complete(request)

    def prompt(self, request: int) -> tuple[int, ...]:
        """Return the prompt of a request."""
        return self._prompts[request]

    def keys(self, request: int) -> tuple[int, ...]:
        """Return one number per full block of a request."""
        return tuple(self._keys[request])

    def _complete(self, request: int) -> None:
        size, keys, tokens = self._block_size, self._keys[request], self._tokens[request]
        while len(tokens) >= (len(keys) + 1) * size:
            block = tuple(tokens[len(keys) * size : (len(keys) + 1) * size])
            parent = keys[-1] if keys else -1
            keys.append(self._numbers.setdefault((parent, block), len(self._numbers)))
