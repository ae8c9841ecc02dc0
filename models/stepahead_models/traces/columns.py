"""A trace as columns, and the pure ways to change its arrivals.

Owns the meaning and the consistency of the columns. Knows no file and no format.
"""

import hashlib
import math
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from stepahead_models.traces.problems import BadLine

NONE_GIVEN: Final = -1
ARRIVAL_NS_MAX: Final = 2**62
DIGEST_VERSION: Final = b"stepahead trace columns 1\n"


def _no_ints() -> NDArray[np.int64]:
    return np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, eq=False, kw_only=True)
class Trace:
    """Requests in order of arrival, one entry per request in every column.

    Construction copies nothing that is int64 already, makes every array read-only and raises
    `ValueError` if the columns contradict each other. Two traces with the same `digest` hold the
    same requests, whatever file or format they came from.

    Attributes:
        request_ids: unique names; "r0", "r1", ... in line order where the file has none.
        arrivals_ns: ns after the first arrival, never decreasing, at most 2**62; int64, shape
            ``(requests,)``.
        input_lengths: prompt tokens, at least 1.
        output_lengths: tokens that the recorded request received, at least 1.
        max_tokens: limit that the client asked for, at least the output length; -1 not given.
        cancel_after_ns: the client cancels so long after its arrival, at most 2**62; -1 never.
        cancel_after_tokens: the client cancels once so many output tokens reached it; -1 never.
        priorities: 0 where the file has none.
        hash_offsets: entries i and i + 1 delimit the hash ids of request i; shape
            ``(requests + 1,)``.
        hash_ids: content of the prompt in blocks of ``hash_block_size`` tokens; the last block of a
            prompt may be partial and may be left out. Shape ``(hash_offsets[-1],)``.
        hash_block_size: tokens per hash id; 0 when no request has any.
        name: for people; not part of the digest.
        format_name: where the columns came from; not part of the digest.
        bad_lines: what was skipped on reading; not part of the digest.
    """

    request_ids: tuple[str, ...]
    arrivals_ns: NDArray[np.int64]
    input_lengths: NDArray[np.int64]
    output_lengths: NDArray[np.int64]
    max_tokens: NDArray[np.int64]
    cancel_after_ns: NDArray[np.int64]
    cancel_after_tokens: NDArray[np.int64]
    priorities: NDArray[np.int64]
    hash_offsets: NDArray[np.int64]
    hash_ids: NDArray[np.int64] = field(default_factory=_no_ints)
    hash_block_size: int = 0
    name: str = "trace"
    format_name: str = "columns"
    bad_lines: tuple[BadLine, ...] = ()

    def __post_init__(self) -> None:
        """Freeze the arrays and check that the columns agree."""
        for entry in fields(self):
            value: object = getattr(self, entry.name)
            if isinstance(value, np.ndarray):
                frozen = np.asarray(value, dtype=np.int64).view()
                frozen.flags.writeable = False
                object.__setattr__(self, entry.name, frozen)
        if self.hash_ids.size == 0 and self.hash_block_size != 0:
            object.__setattr__(self, "hash_block_size", 0)
        problem = self._shape_problem() or self._time_problem() or self._value_problem()
        problem = problem or self._hash_problem()
        if problem is not None:
            raise ValueError(f"trace {self.name!r}: {problem}")

    def _shape_problem(self) -> str | None:
        count = len(self.request_ids)
        if count == 0:
            return "it holds no request"
        for name, column in self._number_columns().items():
            if column.shape != (count,):
                return f"{name} has shape {column.shape} for {count} requests"
        if self.hash_offsets.shape != (count + 1,):
            return f"hash_offsets has shape {self.hash_offsets.shape} for {count} requests"
        return None

    def _time_problem(self) -> str | None:
        if self.arrivals_ns[0] != 0 or bool(np.any(np.diff(self.arrivals_ns) < 0)):
            return "arrivals_ns must start at 0 and never decrease"
        if max(self.span_ns, int(self.cancel_after_ns.max())) > ARRIVAL_NS_MAX:
            return "arrivals_ns and cancel_after_ns must be at most 2**62 ns (146 years)"
        return None

    def _value_problem(self) -> str | None:
        if len(set(self.request_ids)) != len(self):
            return "request_ids must be unique"
        if min(self.input_lengths.min(), self.output_lengths.min()) < 1:
            return "input_lengths and output_lengths must be at least 1"
        if bool(np.any((self.max_tokens != NONE_GIVEN) & (self.max_tokens < self.output_lengths))):
            return "max_tokens must be -1 or at least the output length"
        if bool(np.any((self.cancel_after_ns >= 0) & (self.cancel_after_tokens >= 0))):
            return "a request has both cancel_after_ns and cancel_after_tokens"
        return None

    def _hash_problem(self) -> str | None:
        counts = np.diff(self.hash_offsets)
        ends = (int(self.hash_offsets[0]), int(self.hash_offsets[-1]))
        if ends != (0, self.hash_ids.size) or bool(np.any(counts < 0)):
            return "hash_offsets must rise from 0 to the number of hash_ids"
        if self.hash_ids.size == 0:
            return None
        if self.hash_block_size < 1 or self.hash_ids.min() < 0:
            return "hash_ids must be at least 0 and need a hash_block_size of at least 1"
        whole, rest = np.divmod(self.input_lengths, self.hash_block_size)
        fits = (counts == 0) | (counts == whole) | (counts == whole + (rest > 0))
        if bool(np.all(fits)):
            return None
        row = int(np.argmin(fits))
        return (
            f"request {self.request_ids[row]} has {counts[row]} hash_ids for "
            f"{self.input_lengths[row]} prompt tokens in blocks of {self.hash_block_size}"
        )

    def __len__(self) -> int:
        """Count the requests."""
        return len(self.request_ids)

    def __repr__(self) -> str:
        """Name the trace and its size; the columns are too long to show."""
        return f"<Trace {self.name!r} ({self.format_name}), {len(self)} requests>"

    @property
    def span_ns(self) -> int:
        """Time from the first arrival to the last, in ns."""
        return int(self.arrivals_ns[-1])

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the canonical columns in hex: names, numbers and hash ids, nothing else.

        It depends neither on compression, file name or format, nor on the machine's byte order.
        """
        state = hashlib.sha256(DIGEST_VERSION)
        state.update(f"{len(self)} {self.hash_block_size}\n".encode())
        for request_id in self.request_ids:
            name = request_id.encode("utf-8", "surrogatepass")
            state.update(len(name).to_bytes(8, "little") + name)
        for entry in fields(self):
            value: object = getattr(self, entry.name)
            if isinstance(value, np.ndarray):
                state.update(np.ascontiguousarray(value, dtype="<i8").tobytes())
        return state.hexdigest()

    def hash_ids_of(self, index: int) -> NDArray[np.int64]:
        """Hash ids of the request at ``index``, as a view."""
        return self.hash_ids[self.hash_offsets[index] : self.hash_offsets[index + 1]]

    def limit(self, count: int) -> Self:
        """Keep the ``count`` requests that arrive first (all of them if there are fewer).

        Raises:
            ValueError: ``count`` is below 1.
        """
        if count < 1:
            raise ValueError(f"a trace can be limited to 1 request or more, not to {count}")
        if count >= len(self):
            return self
        return replace(
            self,
            request_ids=self.request_ids[:count],
            arrivals_ns=self.arrivals_ns[:count],
            input_lengths=self.input_lengths[:count],
            output_lengths=self.output_lengths[:count],
            max_tokens=self.max_tokens[:count],
            cancel_after_ns=self.cancel_after_ns[:count],
            cancel_after_tokens=self.cancel_after_tokens[:count],
            priorities=self.priorities[:count],
            hash_offsets=self.hash_offsets[: count + 1],
            hash_ids=self.hash_ids[: self.hash_offsets[count]],
        )

    def speed(self, factor: float) -> Self:
        """Divide every arrival time by ``factor``, each rounded to a whole ns (half to even).

        The patience of clients (`cancel_after_ns`) stays as it is: it is a property of people, not
        of the load.

        Raises:
            ValueError: ``factor`` is not a positive number, or arrivals would exceed 2**62 ns.
        """
        if not (math.isfinite(factor) and factor > 0):
            raise ValueError(f"speed must be a positive number, not {factor}")
        if self.span_ns / factor > ARRIVAL_NS_MAX:
            raise ValueError(f"speed {factor} moves the last arrival beyond 2**62 ns (146 years)")
        return replace(self, arrivals_ns=np.rint(self.arrivals_ns / factor).astype(np.int64))

    def poisson(self, rate_per_s: float, seed: int) -> Self:
        """Replace the arrivals by a Poisson process; order and requests stay as they are.

        Gaps are exponential with mean ``1 / rate_per_s``, drawn from PCG64, each rounded to a whole
        ns; the first request arrives at 0.

        Raises:
            ValueError: ``rate_per_s`` is not a positive number, or arrivals would exceed 2**62 ns.
        """
        if not (math.isfinite(rate_per_s) and rate_per_s > 0):
            raise ValueError(f"rate must be a positive number of requests/s, not {rate_per_s}")
        draws = np.random.Generator(np.random.PCG64(seed)).standard_exponential(len(self) - 1)
        gaps = np.rint(draws * (1e9 / rate_per_s))
        if float(gaps.sum()) > ARRIVAL_NS_MAX:
            raise ValueError(
                f"rate {rate_per_s}/s moves the last arrival beyond 2**62 ns (146 years)"
            )
        arrivals = np.zeros(len(self), dtype=np.int64)
        np.cumsum(gaps.astype(np.int64), out=arrivals[1:])
        return replace(self, arrivals_ns=arrivals)

    def repeat(self, times: int, *, new_prompts: bool = False) -> Self:
        """Play the trace ``times`` times in a row, for long runs.

        Pass k is shifted by k times (span + mean gap) and its ids end in "#k"; a single pass is the
        trace itself. The mean gap is rounded down to a whole ns, and is 0 for a single request.

        Args:
            times: number of passes, at least 1.
            new_prompts: give each pass hash ids of its own, so that no pass finds the prompts of
                another in a prefix cache. By default every pass sends the same prompts.

        Raises:
            ValueError: ``times`` is below 1, or arrivals or hash ids would exceed 2**62.
        """
        if times < 1:
            raise ValueError(f"a trace can be played 1 time or more, not {times}")
        if times == 1:
            return self
        period = self.span_ns + self.span_ns // max(1, len(self) - 1)
        id_step = int(self.hash_ids.max()) + 1 if new_prompts and self.hash_ids.size else 0
        if max(period, id_step) * times > ARRIVAL_NS_MAX:
            raise ValueError(f"{times} passes move arrivals or hash ids beyond 2**62")
        passes = np.arange(times, dtype=np.int64)[:, None]
        ends = (self.hash_offsets[1:] + passes * self.hash_ids.size).ravel()
        return replace(
            self,
            request_ids=tuple(f"{name}#{k}" for k in range(times) for name in self.request_ids),
            arrivals_ns=(self.arrivals_ns + passes * period).ravel(),
            input_lengths=np.tile(self.input_lengths, times),
            output_lengths=np.tile(self.output_lengths, times),
            max_tokens=np.tile(self.max_tokens, times),
            cancel_after_ns=np.tile(self.cancel_after_ns, times),
            cancel_after_tokens=np.tile(self.cancel_after_tokens, times),
            priorities=np.tile(self.priorities, times),
            hash_offsets=np.concatenate((np.zeros(1, dtype=np.int64), ends)),
            hash_ids=(self.hash_ids + passes * id_step).ravel(),
        )

    def _number_columns(self) -> dict[str, NDArray[np.int64]]:
        return {
            "arrivals_ns": self.arrivals_ns,
            "input_lengths": self.input_lengths,
            "output_lengths": self.output_lengths,
            "max_tokens": self.max_tokens,
            "cancel_after_ns": self.cancel_after_ns,
            "cancel_after_tokens": self.cancel_after_tokens,
            "priorities": self.priorities,
        }
