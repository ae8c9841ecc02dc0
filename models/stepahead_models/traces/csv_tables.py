"""Read CSV tables: Azure 2023 and 2024, and BurstGPT. None has prefixes, ids or limits.

Columns are found by their names in the header, so their order and additional ones do not matter.

Sources: Azure/AzurePublicDataset `AzureLLMInferenceTrace_*.csv` (2023 checked: UTC times without a
zone, seven fractional digits; 2024 not at hand, so zone and fraction are both optional here),
HPMLL/BurstGPT `data/BurstGPT_*.csv` (seconds from the start; its README says that failed requests
have 0 response tokens, and such lines are bad here).
"""

import re
from collections.abc import Iterable
from datetime import date
from decimal import Decimal, InvalidOperation
from typing import Final

from stepahead_models.traces.columns import ARRIVAL_NS_MAX
from stepahead_models.traces.content import NEEDED_COLUMNS, Layout, csv_cells, numbered_lines
from stepahead_models.traces.problems import BadLines
from stepahead_models.traces.requests import TOKENS_EXPECTED, TOKENS_MAX, FoundRequests

NS_PER_S: Final = 10**9
DAY_S: Final = 86_400
EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
AZURE_TIME: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)[ T]([01]\d|2[0-3]):([0-5]\d):([0-5]\d)(?:\.(\d{1,9}))?"
    r"(Z|([+-])(\d\d):?(\d\d))?",
    re.ASCII,
)
TOKENS: Final = re.compile(r"[0-9]{1,10}")
AZURE_EXPECTED: Final = "a UTC time such as 2023-11-16 18:17:03.9799600, from 1970 on"
SECONDS_EXPECTED: Final = "a number of seconds, at least 0 and below 2**62 ns"


def read_csv_table(data: bytes, layout: Layout, bad: BadLines) -> FoundRequests:
    """Read all lines under the header; bad ones go to ``bad``.

    Raises:
        TraceError: a bad line, unless ``bad`` skips them.
    """
    (_, first), *lines = numbered_lines(data)
    header = csv_cells(first)
    time_name, input_name, output_name = NEEDED_COLUMNS[layout]
    time_at, input_at, output_at = map(header.index, (time_name, input_name, output_name))
    azure = layout is Layout.AZURE_CSV
    read_time = _AzureClock().read if azure else _seconds
    found = FoundRequests(format_name="burstgpt")
    for number, line in lines:
        cells = csv_cells(line)
        if len(cells) != len(header):
            found_text = f"{len(cells)}: {_shown(','.join(cells))}"
            bad.report(number, "(line)", f"{len(header)} cells", found_text)
            continue
        time_ns = read_time(cells[time_at])
        input_length, output_length = _tokens(cells[input_at]), _tokens(cells[output_at])
        if time_ns is None:
            expected = AZURE_EXPECTED if azure else SECONDS_EXPECTED
            bad.report(number, time_name, expected, _shown(cells[time_at]))
        elif input_length is None:
            bad.report(number, input_name, TOKENS_EXPECTED, _shown(cells[input_at]))
        elif output_length is None:
            bad.report(number, output_name, TOKENS_EXPECTED, _shown(cells[output_at]))
        else:
            found.times_ns.append(time_ns)
            found.input_lengths.append(input_length)
            found.output_lengths.append(output_length)
    if azure:
        found.format_name = _azure_name(line for _, line in lines)
    return found


def _azure_name(lines: Iterable[bytes]) -> str:
    """Name the release by the year of its first time; the columns are the same in all."""
    for line in lines:
        if match := AZURE_TIME.search(line.decode("utf-8", "replace")):
            return f"azure-{match[1][:4]}"
    return "azure"


class _AzureClock:
    """Turns time stamps into ns since 1970-01-01 UTC, exactly; remembers days."""

    def __init__(self) -> None:
        self.day_s: dict[str, int] = {}

    def read(self, text: str) -> int | None:
        """Read one cell; None if it is no time."""
        match = AZURE_TIME.fullmatch(text)
        if match is None:
            return None
        day, hour, minute, second, fraction, _, sign, offset_hour, offset_minute = match.groups()
        if day not in self.day_s:
            try:
                self.day_s[day] = (date.fromisoformat(day).toordinal() - EPOCH_DAY) * DAY_S
            except ValueError:
                return None
        seconds = self.day_s[day] + int(hour) * 3600 + int(minute) * 60 + int(second)
        if sign:
            offset = int(offset_hour) * 3600 + int(offset_minute) * 60
            seconds -= offset if sign == "+" else -offset
        time_ns = seconds * NS_PER_S + int((fraction or "0").ljust(9, "0"))
        return time_ns if 0 <= time_ns < ARRIVAL_NS_MAX else None


def _seconds(text: str) -> int | None:
    try:
        value = Decimal(text)
    except InvalidOperation:
        return None
    if not value.is_finite() or not 0 <= value < ARRIVAL_NS_MAX // NS_PER_S:
        return None
    return round(value * NS_PER_S)


def _tokens(text: str) -> int | None:
    # int() alone would take signs, underscores and the digits of other scripts.
    if TOKENS.fullmatch(text) is None:
        return None
    count = int(text)
    return count if 1 <= count <= TOKENS_MAX else None


def _shown(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace") or "nothing"
