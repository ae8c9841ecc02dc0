"""Single requests before an engine: identity, length, and what its configuration excludes."""

import pytest
from msgspec.structs import replace

from stepahead_models.product import (
    EngineConfig,
    Feature,
    InvalidOption,
    ModelDescription,
    RequestOptions,
    UnsupportedRequest,
    Verdict,
    check_request,
    compatibility,
    read_engine_config,
)
from stepahead_models.product.requests import (
    REQUEST_RULES,
    ContextLengthExceeded,
    DuplicateRequestId,
)

MODEL = ModelDescription(max_positions=100)
MTP = '{"method": "mtp", "num_speculative_tokens": 2}'
ASKED = RequestOptions(request_id="r1", prompt_tokens=90)

REFUSED: list[tuple[str, dict[str, object], type[InvalidOption], str]] = [
    (
        "request-id-is-new",
        {"request_id": "live"},
        DuplicateRequestId,
        (
            "request_id is 'live'; expected an id that no live request has; "
            "choose another id, or wait until that request has ended"
        ),
    ),
    (
        "prompt-fits-the-context",
        {"prompt_tokens": 101},
        ContextLengthExceeded,
        ("prompt_tokens is '101 of 100'; expected a prompt within the context; shorten the prompt"),
    ),
    (
        "prompt-and-max-tokens-fit-the-context",
        {"max_tokens": 11},
        ContextLengthExceeded,
        (
            "max_tokens is '11 after 90 of 100'; expected prompt and output within the context; "
            "lower max_tokens, or leave it out for what is left"
        ),
    ),
    (
        "min-tokens-fit-the-context",
        {"prompt_tokens": 100},
        ContextLengthExceeded,
        (
            "min_tokens is '0 after 100 of 100'; expected room for one token and for min_tokens; "
            "shorten the prompt, or lower min_tokens"
        ),
    ),
]


@pytest.mark.parametrize(("name", "fields", "error", "message"), REFUSED)
def test_a_request_that_breaks_a_rule_is_refused(
    name: str, fields: dict[str, object], error: type[InvalidOption], message: str
) -> None:
    """Each rule by its own class of error, before anything runs."""
    rule = next(rule for rule in REQUEST_RULES if rule.name == name)
    asked = replace(ASKED, **fields)
    with pytest.raises(InvalidOption) as caught:
        check_request(asked, EngineConfig(), MODEL, live_ids=["live"])
    assert type(caught.value) is error is rule.error
    assert str(caught.value) == message


def test_every_rule_about_requests_is_tested_above() -> None:
    """And has a source."""
    assert [rule.name for rule in REQUEST_RULES] == [name for name, *_ in REFUSED]
    assert all(rule.source for rule in REQUEST_RULES)


@pytest.mark.parametrize(
    ("prompt_tokens", "max_tokens", "min_tokens", "fits"),
    [
        (99, None, 0, True),
        (99, None, 1, True),
        (99, None, 2, False),
        (90, 10, 10, True),
        (90, None, 10, True),
        (90, None, 11, False),
    ],
)
def test_a_request_may_fill_the_context_to_its_last_token(
    prompt_tokens: int, max_tokens: int | None, min_tokens: int, *, fits: bool
) -> None:
    """With 100 tokens of context."""
    asked = RequestOptions(
        request_id="r1",
        prompt_tokens=prompt_tokens,
        max_tokens=max_tokens,
        min_tokens=min_tokens,
    )
    if fits:
        check_request(asked, EngineConfig(), MODEL)
    else:
        with pytest.raises(ContextLengthExceeded):
            check_request(asked, EngineConfig(), MODEL)


def test_without_a_known_limit_any_length_is_taken() -> None:
    """The same request is refused where the limit is known."""
    asked = RequestOptions(request_id="r1", prompt_tokens=10**9, max_tokens=10**9)
    check_request(asked, EngineConfig(), ModelDescription())
    with pytest.raises(ContextLengthExceeded):
        check_request(asked, EngineConfig(), MODEL)


@pytest.mark.parametrize(
    ("field", "value", "feature"),
    [
        ("kv_transfer_params", True, Feature.KV_TRANSFER_PARAMS),
        ("structured_outputs", True, Feature.STRUCTURED_OUTPUTS),
        ("logprobs", 0, Feature.LOGPROBS),
        ("prompt_logprobs", -1, Feature.PROMPT_LOGPROBS),
    ],
)
def test_speculation_excludes_four_options_of_a_request(
    field: str, value: object, feature: Feature
) -> None:
    """Without speculation each of them is taken."""
    asked = replace(ASKED, **{field: value})
    check_request(asked, EngineConfig(), MODEL)
    with pytest.raises(UnsupportedRequest) as caught:
        check_request(asked, read_engine_config(options={"speculative_config": MTP}), MODEL)
    assert str(caught.value) == (
        f"{field if feature is not Feature.STRUCTURED_OUTPUTS else 'structured outputs'} "
        "in a request cannot be used beside speculative decoding with embedded MTP in 2026.4; "
        f"change {field}: leave {field} out of the request, or leave speculative_config out"
    )
    assert caught.value.feature is feature


@pytest.mark.parametrize(
    "feature",
    [
        Feature.KV_TRANSFER_PARAMS,
        Feature.STRUCTURED_OUTPUTS,
        Feature.LOGPROBS,
        Feature.PROMPT_LOGPROBS,
    ],
)
def test_a_row_that_refuses_an_option_of_a_request_would_count(
    feature: Feature, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check holds no copy of the table: changing one row changes one answer."""
    config = read_engine_config(options={"enable_overlap_scheduling": True})
    asked = replace(
        ASKED, kv_transfer_params=True, structured_outputs=True, logprobs=1, prompt_logprobs=1
    )
    check_request(asked, config, MODEL)
    rows = [
        replace(row, overlap=Verdict.REFUSED) if row.feature is feature else row
        for row in compatibility.COMPATIBILITY
    ]
    monkeypatch.setattr(compatibility, "COMPATIBILITY", rows)
    with pytest.raises(UnsupportedRequest) as caught:
        check_request(asked, config, MODEL)
    assert caught.value.feature is feature
