"""When to select: as early as lookahead allows, or just in time.

Selecting early hides the preparation, but closes the batch to whoever arrives while the device
still runs. `JustInTime` asks to be woken at the predicted end of the running batch, minus the
predicted preparation, minus a margin. It predicts only from times in events, and it learns only
from few turns: the first of a row set says how long such a batch takes, the first two how well one
turn predicts the next, and a later one counts only if the preparation was made to wait and came
late. Each chunk of a prompt is a row set of its own. A stretch comes with the times of all these
turns (`Pace`), and contains no late one, so stretched and single-stepped runs learn the same. While
it knows nothing about a batch, or has been late too often, it selects early: plain overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final, Protocol, TypeAlias

from stepahead.batches import Batch

_MILLION: Final = 1_000_000
_MARGIN_MIN: Final = 5_000
_MARGIN_START: Final = 30_000
_MARGIN_MAX: Final = 500_000
_MARGIN_STEP: Final = 20_000
_KEYS_MAX: Final = 4096
_FOREVER: Final = 1 << 30
#: Rows, tokens and KV tokens of a batch.
Volume: TypeAlias = tuple[int, int, int]


@dataclass(slots=True)
class Estimate:
    """A running mean and mean deviation of one duration, ns (the estimator of RFC 6298)."""

    mean: int
    deviation: int

    def learn(self, observed: int) -> None:
        """Move towards ``observed``."""
        error = observed - self.mean
        self.mean += error // 8
        self.deviation += (abs(error) - self.deviation) // 4

    @property
    def low(self) -> int:
        """What it hardly ever falls below."""
        return max(self.mean - 2 * self.deviation, 0)

    @property
    def high(self) -> int:
        """What it hardly ever exceeds."""
        return self.mean + 2 * self.deviation


@dataclass(slots=True)
class Durations:
    """Estimates by a fine key, and by the coarse key that stands in for fine ones never seen."""

    fine: dict[tuple[int, ...], Estimate] = field(default_factory=dict[tuple[int, ...], Estimate])
    coarse: dict[int, Estimate] = field(default_factory=dict[int, Estimate])

    def find(self, fine: tuple[int, ...], coarse: int) -> Estimate | None:
        """Return what is known best, or None."""
        return self.fine.get(fine) or self.coarse.get(coarse)

    def learn(self, fine: tuple[int, ...], coarse: int, observed: int) -> None:
        """Learn from one duration; a first one says nothing of deviations: an eighth is taken."""
        rough = self.coarse.get(coarse)
        if rough is None:
            rough = self.coarse[coarse] = Estimate(observed, observed // 8)
        else:
            rough.learn(observed)
        known = self.fine.get(fine)
        if known is not None:
            known.learn(observed)
            return
        if len(self.fine) >= _KEYS_MAX:
            del self.fine[next(iter(self.fine))]
        self.fine[fine] = Estimate(observed, rough.deviation)

    @property
    def room(self) -> int:
        """How many more fine keys can be learnt before one is forgotten."""
        return _KEYS_MAX - len(self.fine)

    def lend(self, other: Durations, fine: tuple[int, ...], coarse: int) -> None:
        """Give ``other`` a copy of what `find` and `learn` look at for these keys."""
        known, rough = self.fine.get(fine), self.coarse.get(coarse)
        if known is not None:
            other.fine[fine] = Estimate(known.mean, known.deviation)
        if rough is not None:
            other.coarse[coarse] = Estimate(rough.mean, rough.deviation)

    def copy(self) -> Durations:
        """Return an independent copy."""
        return Durations(
            {key: replace(known) for key, known in self.fine.items()},
            {key: replace(known) for key, known in self.coarse.items()},
        )


class Timed(Protocol):
    """What is looked at of a batch on the device; see `Batch`."""

    batch_id: int
    volume: Volume
    fresh: bool
    dispatched_at: int


@dataclass(slots=True)
class JustInTime:
    """What was learnt about durations, ns.

    ``late_share`` (parts per million) is the share of preparations that may end after the device
    does, of those that were made to wait. ``margin`` (parts per million of the device's span) is
    steered to it: one that is late raises it, one in time lowers it by as much less as it is more
    frequent. With ``again`` nothing is made to wait: what was selected early is selected again for
    an arrival. ``jitter`` (parts per million) is by how much two turns of one row set differ.
    ``last`` are size and span of the newest row set, ``second`` the batch that is its second turn,
    ``waited`` the newest batch whose successor was made to wait, or selected again.
    """

    late_share: int
    again: bool = False
    margin: int = _MARGIN_START
    spans: Durations = field(default_factory=Durations)
    preparations: Durations = field(default_factory=Durations)
    jitter: Estimate = field(default_factory=lambda: Estimate(0, 0))
    last: tuple[tuple[int, ...], int] = ((), 0)
    second: int = 0
    waited: int = 0

    def learns(self, batch: Timed) -> int:
        """Return of how many batches something is learnt: of this one, and if so of the next."""
        return 2 if batch.fresh else int(batch.batch_id == self.second)

    def excerpt(self, volumes: Sequence[Volume]) -> JustInTime:
        """Return a copy that learns from batches of these volumes.

        It forgets nothing: that is up to `Durations.room`.
        """
        spans, preparations = Durations({}, {}), Durations({}, {})
        for volume in volumes:
            size = _size(volume)
            self.spans.lend(spans, size, size[1])
            self.preparations.lend(preparations, *_crew(volume[0]))
        return JustInTime(
            self.late_share,
            self.again,
            self.margin,
            spans,
            preparations,
            Estimate(self.jitter.mean, self.jitter.deviation),
            self.last,
            self.second,
            self.waited,
        )

    def delay(self, batch: Timed) -> int:
        """Return how long after the dispatch of ``batch`` to select the next one; 0: at once."""
        return 0 if self.again else self.latest(batch)

    def latest(self, batch: Timed) -> int:
        """Return how long after its dispatch a preparation behind ``batch`` may still begin.

        0 when that is not known, or when there is no time at all.
        """
        if self.margin > _MARGIN_MAX:
            return 0
        size = _size(batch.volume)
        span = self.spans.find(size, size[1])
        preparation = self.preparations.find(*_crew(batch.volume[0]))
        if span is None or preparation is None:
            return 0
        known, observed = self.last
        lasts = span.low
        if known == size and not batch.fresh:
            lasts = observed - observed * min(self.jitter.high, _MILLION) // _MILLION
        return max(0, lasts - preparation.high - lasts * self.margin // _MILLION)

    def waits(self, batch: Timed) -> None:
        """The successor of ``batch`` is made to wait, or selected again."""
        if self.learns(batch):
            self.waited = batch.batch_id

    def prepared(self, batch: Batch) -> None:
        """Learn how long the preparation of a new row set took."""
        if batch.fresh:
            self.built(batch.volume[0], batch.prepared_at - batch.selected_at)

    def built(self, rows: int, took: int) -> None:
        """Learn how long a new batch of so many rows was prepared, ns."""
        self.preparations.learn(*_crew(rows), took)

    def executed(self, batch: Timed, ended_at: int, *, late: bool) -> None:
        """Learn how long a batch kept the device, and whether its successor was late."""
        size, span = _size(batch.volume), ended_at - batch.dispatched_at
        if not self.learns(batch):
            if late and size == self.last[0] and self.delay(batch):
                self.last = (size, (self.last[1] + span) // 2)
            return
        if batch.fresh:
            self.spans.learn(size, size[1], span)
            self.last, self.second = (size, span), batch.batch_id + 1
        else:
            before = self.last[1]
            self.jitter.learn(abs(span - before) * _MILLION // max(before, 1))
            self.last = (size, (before + span) // 2)
        # A preparation that did not wait is not late for having waited. But whoever stopped waiting
        # tries again after a while.
        if self.waited == batch.batch_id or self.margin > _MARGIN_MAX:
            relief = _MARGIN_STEP * self.late_share // (_MILLION - self.late_share)
            self.margin += _MARGIN_STEP if late and self.margin <= _MARGIN_MAX else -relief
            self.margin = max(self.margin, _MARGIN_MIN)

    def copy(self) -> JustInTime:
        """Return an independent copy."""
        return replace(
            self,
            spans=self.spans.copy(),
            preparations=self.preparations.copy(),
            jitter=replace(self.jitter),
        )


@dataclass(slots=True)
class Running:
    """The batch on the device, one after the other of a row set; see `Batch`."""

    batch_id: int
    volume: Volume
    fresh: bool
    dispatched_at: int


@dataclass(slots=True)
class Pace:
    """When selections are made in the turns of a row set that is being learnt from.

    ``timing`` learns. ``running`` is the batch on the device, ``behind`` are those that were
    selected then, and still are not on it. ``prepared_after`` is how long after the dispatch of the
    running batch the one behind it was prepared, ns. With a ``prompt`` in it, each batch is new,
    and reads as many more KV tokens as the one before has computed.
    """

    timing: JustInTime
    running: Running
    behind: list[Running]
    prepared_after: int
    prompt: bool

    @classmethod
    def of(cls, timing: JustInTime, outstanding: Sequence[Batch], *, prompt: bool) -> Pace:
        """Return the pace from these batches on; ``timing`` learns, they stay as they are."""
        running, *behind = (
            Running(batch.batch_id, batch.volume, batch.fresh, batch.dispatched_at)
            for batch in outstanding
        )
        after = outstanding[1].prepared_at - running.dispatched_at
        return cls(timing, running, behind, after, prompt)

    def apart(self, turns: int) -> Pace:
        """Return this one, learning for itself alone from now on, for so many turns at most."""
        volumes = [self.running.volume]
        for batch in self.behind:
            volumes.append(batch.volume)
        for _ in range(turns if self.prompt else 0):
            volumes.append(_further(volumes[-1]))
        self.timing = self.timing.excerpt(volumes)
        return self

    @property
    def learns(self) -> int:
        """How many batches there are up to the last one that is learnt from, the running one first.

        There is no end to them with a prompt.
        """
        if self.prompt:
            return _FOREVER
        count = self.timing.learns(self.running)
        for place, batch in enumerate(self.behind, start=1):
            count = max(count, place + self.timing.learns(batch)) if batch.fresh else count
        return count

    @property
    def dispatched_at(self) -> int:
        """When the first batch was dispatched, ns."""
        return self.running.dispatched_at

    def executed(self, span: int) -> None:
        """The running batch comes back, the one behind it is dispatched, one more is selected.

        Args:
            span: from the dispatch of the running batch until the device was done with it, ns.
        """
        running = self.running
        ended_at = running.dispatched_at + span
        self.timing.executed(running, ended_at, late=span < self.prepared_after)
        if self.behind:
            self.running = self.behind.pop(0)
        else:
            running.batch_id += 1
            running.fresh = self.prompt
            if self.prompt:
                running.volume = _further(running.volume)
        self.prepared_after = 0  # what a stretch prepares is not late

    def ready(self, after: int) -> int:
        """The host is ready to select, so long after the dispatch; return how long it has to wait.

        That counts from the dispatch, and is over already if it is shorter than ``after``; ns.
        """
        delay = self.timing.delay(self.running)
        if after < delay:
            self.timing.waits(self.running)
        return delay

    def built(self, took: int) -> None:
        """The batch that was selected is prepared, which took so long, ns."""
        if self.prompt:
            self.timing.built(self.running.volume[0], took)


def _further(volume: Volume) -> Volume:
    """Return the volume of the batch that computes as many tokens per row behind this one."""
    rows, tokens, kv_tokens = volume
    return rows, tokens, kv_tokens + tokens


@lru_cache(maxsize=_KEYS_MAX)
def _size(volume: Volume) -> tuple[int, ...]:
    """Return what spans are kept by: rows, then tokens and KV tokens, each within 1/8."""
    rows, tokens, kv_tokens = volume
    return rows, _rough(tokens), _rough(kv_tokens)


@lru_cache(maxsize=_KEYS_MAX)
def _crew(rows: int) -> tuple[tuple[int, ...], int]:
    """Return what preparations are kept by: rows within 1/8, and within their octave."""
    return (_rough(rows),), rows.bit_length()


def _rough(number: int) -> int:
    """Number the eighth of its octave in which ``number`` lies."""
    octave = max(number.bit_length() - 4, 0)
    return (octave << 4) + (number >> octave)
