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

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

_MILLION: Final = 1_000_000
_MARGIN_MIN: Final = 5_000
_MARGIN_START: Final = 30_000
_MARGIN_MAX: Final = 500_000
_MARGIN_STEP: Final = 20_000
_KEYS_MAX: Final = 4096
_FOREVER: Final = 1 << 30
_ROUGH_BITS: Final = 16  # of a rough number, and more


@dataclass(slots=True)
class Key:
    """What a duration is kept by; ``coarse`` stands in for every ``fine`` one never seen."""

    fine: int
    coarse: int


@dataclass(slots=True)
class Volume:
    """What there is to compute in a batch; never written.

    Its span is kept by ``size``: rows, tokens and KV tokens, the last two within 1/8; or by its
    tokens alone. Its preparation is kept by ``crew``: rows within 1/8; or within their octave.
    """

    rows: int
    tokens: int
    kv_tokens: int
    size: Key
    crew: Key

    @classmethod
    def of(cls, rows: int, tokens: int, kv_tokens: int) -> Volume:
        """Return the volume of a batch of so many rows, tokens, and KV tokens that it reads."""
        load = _rough(tokens)
        size = (((rows << _ROUGH_BITS) + load) << _ROUGH_BITS) + _rough(kv_tokens)
        crew = Key(_rough(rows), rows.bit_length())
        return cls(rows, tokens, kv_tokens, Key(size, load), crew)

    def further(self, steps: int) -> Volume:
        """Return that of the batch with as many tokens per row so many steps later."""
        return Volume.of(self.rows, self.tokens, self.kv_tokens + steps * self.tokens)


def _rough(number: int) -> int:
    """Number the eighth of its octave in which ``number`` lies."""
    octave = max(number.bit_length() - 4, 0)
    return (octave << 4) + (number >> octave)


#: Of nothing, where no duration is learnt.
NO_VOLUME: Final = Volume.of(0, 0, 0)


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
    """Estimates by their keys, the fine and the coarse ones."""

    fine: dict[int, Estimate] = field(default_factory=dict[int, Estimate])
    coarse: dict[int, Estimate] = field(default_factory=dict[int, Estimate])

    def find(self, key: Key) -> Estimate | None:
        """Return what is known best, or None."""
        known = self.fine.get(key.fine)
        return self.coarse.get(key.coarse) if known is None else known

    def learn(self, key: Key, observed: int) -> None:
        """Learn from one duration; a first one says nothing of deviations: an eighth is taken."""
        rough = self.coarse.get(key.coarse)
        if rough is None:
            rough = self.coarse[key.coarse] = Estimate(observed, observed // 8)
        else:
            rough.learn(observed)
        known = self.fine.get(key.fine)
        if known is not None:
            known.learn(observed)
            return
        if len(self.fine) >= _KEYS_MAX:
            del self.fine[next(iter(self.fine))]
        self.fine[key.fine] = Estimate(observed, rough.deviation)

    @property
    def room(self) -> int:
        """How many more fine keys can be learnt before one is forgotten."""
        return _KEYS_MAX - len(self.fine)

    def lend(self, other: Durations, key: Key) -> None:
        """Give ``other`` a copy of what `find` and `learn` look at for this key."""
        known, rough = self.fine.get(key.fine), self.coarse.get(key.coarse)
        if known is not None:
            other.fine[key.fine] = Estimate(known.mean, known.deviation)
        if rough is not None:
            other.coarse[key.coarse] = Estimate(rough.mean, rough.deviation)

    def copy(self) -> Durations:
        """Return an independent copy."""
        return Durations(
            {key: replace(known) for key, known in self.fine.items()},
            {key: replace(known) for key, known in self.coarse.items()},
        )


@dataclass(slots=True)
class JustInTime:
    """What was learnt about durations, ns.

    ``late_share`` (parts per million) is the share of preparations that may end after the device
    does, of those that were made to wait. ``margin`` (parts per million of the device's span) is
    steered to it: one that is late raises it, one in time lowers it by as much less as it is more
    frequent. With ``again`` nothing is made to wait: what was selected early is selected again for
    an arrival. ``jitter`` (parts per million) is by how much two turns of one row set differ.
    ``last_size`` and ``last_span`` are those of the newest row set, ``second`` is the batch that is
    its second turn, ``waited`` the newest batch whose successor was made to wait, or selected
    again.
    """

    late_share: int
    again: bool = False
    margin: int = _MARGIN_START
    spans: Durations = field(default_factory=Durations)
    preparations: Durations = field(default_factory=Durations)
    jitter: Estimate = field(default_factory=lambda: Estimate(0, 0))
    last_size: int = -1
    last_span: int = 0
    second: int = 0
    waited: int = 0

    def learns(self, batch_id: int, *, fresh: bool) -> int:
        """Return of how many batches something is learnt: of this one, and if so of the next."""
        return 2 if fresh else int(batch_id == self.second)

    def excerpt(self, volumes: Iterable[Volume]) -> JustInTime:
        """Return a copy that learns from batches of these volumes.

        It forgets nothing: that is up to `Durations.room`.
        """
        spans, preparations = Durations({}, {}), Durations({}, {})
        for volume in volumes:
            self.spans.lend(spans, volume.size)
            self.preparations.lend(preparations, volume.crew)
        return JustInTime(
            self.late_share,
            self.again,
            self.margin,
            spans,
            preparations,
            Estimate(self.jitter.mean, self.jitter.deviation),
            self.last_size,
            self.last_span,
            self.second,
            self.waited,
        )

    def delay(self, volume: Volume, *, fresh: bool) -> int:
        """Return how long after the dispatch of a batch to select the next one; 0: at once."""
        return 0 if self.again else self.latest(volume, fresh=fresh)

    def latest(self, volume: Volume, *, fresh: bool) -> int:
        """Return how long after its dispatch a preparation behind a batch may still begin.

        0 when that is not known, or when there is no time at all.
        """
        if self.margin > _MARGIN_MAX:
            return 0
        span, preparation = self.spans.find(volume.size), self.preparations.find(volume.crew)
        if span is None or preparation is None:
            return 0
        lasts = span.low
        if self.last_size == volume.size.fine and not fresh:
            lasts = self.last_span
            lasts -= lasts * min(self.jitter.high, _MILLION) // _MILLION
        return max(0, lasts - preparation.high - lasts * self.margin // _MILLION)

    def waits(self, batch_id: int, *, fresh: bool) -> None:
        """The successor of a batch is made to wait, or selected again."""
        if self.learns(batch_id, fresh=fresh):
            self.waited = batch_id

    def built(self, volume: Volume, took: int) -> None:
        """Learn how long the preparation of a new row set took, ns."""
        self.preparations.learn(volume.crew, took)

    def executed(
        self, batch_id: int, volume: Volume, span: int, *, fresh: bool, late: bool
    ) -> None:
        """Learn how long a batch kept the device, ns, and whether its successor was late."""
        size = volume.size.fine
        if not self.learns(batch_id, fresh=fresh):
            if late and size == self.last_size and self.delay(volume, fresh=False):
                self.last_span = (self.last_span + span) // 2
            return
        if fresh:
            self.spans.learn(volume.size, span)
            self.last_span, self.second = span, batch_id + 1
        else:
            before = self.last_span
            self.jitter.learn(abs(span - before) * _MILLION // max(before, 1))
            self.last_span = (before + span) // 2
        self.last_size = size
        # A preparation that did not wait is not late for having waited. But whoever stopped waiting
        # tries again after a while.
        if self.waited == batch_id or self.margin > _MARGIN_MAX:
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
class Turn:
    """A batch on the device, one after the other of a row set; see `Batch`."""

    batch_id: int
    volume: Volume
    fresh: bool


@dataclass(slots=True)
class Pace:
    """When selections are made in the turns of a row set that is being learnt from.

    ``timing`` learns. ``running`` is the batch on the device, dispatched at ``dispatched_at``,
    ``behind`` are those that were selected then, and still are not on it. ``prepared_after`` is how
    long after the dispatch of the running batch the one behind it was prepared. Times are ns. With
    a ``prompt`` in it, each batch is new, and reads as many more KV tokens as the one before has
    computed.
    """

    timing: JustInTime
    running: Turn
    behind: list[Turn]
    dispatched_at: int
    prepared_after: int
    prompt: bool

    def apart(self, turns: int) -> Pace:
        """Return this one, learning for itself alone from now on, for so many turns at most."""
        volumes = [self.running.volume]
        for batch in self.behind:
            volumes.append(batch.volume)
        for _ in range(turns if self.prompt else 0):
            volumes.append(volumes[-1].further(1))
        self.timing = self.timing.excerpt(volumes)
        return self

    @property
    def learns(self) -> int:
        """How many batches there are up to the last one that is learnt from, the running one first.

        There is no end to them with a prompt.
        """
        if self.prompt:
            return _FOREVER
        running, timing = self.running, self.timing
        count = timing.learns(running.batch_id, fresh=running.fresh)
        for place, batch in enumerate(self.behind, start=1):
            if batch.fresh:
                count = max(count, place + timing.learns(batch.batch_id, fresh=True))
        return count

    def executed(self, span: int) -> None:
        """The running batch comes back, the one behind it is dispatched, one more is selected.

        Args:
            span: from the dispatch of the running batch until the device was done with it, ns.
        """
        running, late = self.running, span < self.prepared_after
        self.timing.executed(running.batch_id, running.volume, span, fresh=running.fresh, late=late)
        if self.behind:
            self.running = self.behind.pop(0)
        else:
            running.batch_id += 1
            running.fresh = self.prompt
            if self.prompt:
                running.volume = running.volume.further(1)
        self.prepared_after = 0  # what a stretch prepares is not late

    def ready(self, after: int) -> int:
        """The host is ready to select, so long after the dispatch; return how long it has to wait.

        That counts from the dispatch, and is over already if it is shorter than ``after``; ns.
        """
        running = self.running
        delay = self.timing.delay(running.volume, fresh=running.fresh)
        if after < delay:
            self.timing.waits(running.batch_id, fresh=running.fresh)
        return delay

    def built(self, took: int) -> None:
        """The batch that was selected is prepared, which took so long, ns."""
        if self.prompt:
            self.timing.built(self.running.volume, took)
