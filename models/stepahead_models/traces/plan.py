"""What each request of a trace asks for, and where its output really ends.

Public traces record how many tokens came out, not what the client allowed: the plan adds that.
"""

from typing import Final, Literal, assert_never

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from stepahead_models.traces.columns import NONE_GIVEN, Trace

OUTPUT_CAP: Final = 4096
Ends = Literal["eos", "length"]


class RequestPlan(Struct, frozen=True, eq=False, kw_only=True):
    """Limits and ends, one entry per request of the trace.

    Attributes:
        ends: the mode that was planned for.
        max_tokens: limit to tell the kernel, at least 1; int64, shape ``(requests,)``.
        eos_at: the output token, counted from 1, that is the EOS token; -1 if none comes before
            the limit. For the token model only: a kernel that knew it would be cheating.
    """

    ends: Ends
    max_tokens: NDArray[np.int64]
    eos_at: NDArray[np.int64]


def plan_requests(
    trace: Trace, ends: Ends, max_model_len: int, default_output_cap: int = OUTPUT_CAP
) -> RequestPlan:
    """Decide how requests end, so that each gives its recorded number of tokens.

    Mode "eos": output token number ``output_length`` is EOS. A request without a limit of its own
    gets max(output_length, min(max_model_len - input_length, default_output_cap)). One whose
    recorded output is as long as its own limit ends by length and samples no EOS. Mode "length":
    the limit is the recorded output, and no EOS comes.

    A request that does not fit into ``max_model_len`` stays in the plan; refusing it is the
    kernel's business.

    Args:
        trace: the requests.
        ends: "eos" or "length".
        max_model_len: tokens of prompt and output that one request may have.
        default_output_cap: tokens that a client without a limit is taken to allow.

    Raises:
        ValueError: ``max_model_len`` or ``default_output_cap`` is below 1.
    """
    if max_model_len < 1 or default_output_cap < 1:
        raise ValueError(
            "max_model_len and default_output_cap must be at least 1 token, "
            f"not {max_model_len} and {default_output_cap}"
        )
    outputs = trace.output_lengths
    match ends:
        case "eos":
            room = np.minimum(max_model_len - trace.input_lengths, default_output_cap)
            unlimited = trace.max_tokens == NONE_GIVEN
            limits = np.where(unlimited, np.maximum(outputs, room), trace.max_tokens)
            eos_at = np.where(unlimited | (outputs < limits), outputs, NONE_GIVEN)
        case "length":
            limits = outputs.copy()
            eos_at = np.full(len(trace), NONE_GIVEN, dtype=np.int64)
        case _:
            assert_never(ends)
    return RequestPlan(ends=ends, max_tokens=limits, eos_at=eos_at)
