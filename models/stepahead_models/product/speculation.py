"""Speculative decoding: its configuration, nested or in single options, and its rules.

Owns what a speculative configuration may say. With which loops it goes stands in the
compatibility table.
"""

import json
from collections import Counter
from collections.abc import Mapping
from enum import Enum
from typing import Final, cast

from msgspec import Struct

from stepahead_models.product.options import SPECULATIVE
from stepahead_models.product.rules import InvalidOption, Rule, build, enforce, settle_types
from stepahead_models.product.versions import PACKAGE

SOURCE: Final = f"{PACKAGE}, speculative configuration"

# The single options of the Python API, and the keys of the nested form that they stand for.
FLAT: Final = {
    "speculative_method": "method",
    "num_speculative_tokens": "num_speculative_tokens",
    "draft_model_id_or_path": "model",
    "draft_fxb_path": "draft_fxb_path",
}


class SpeculativeMethod(Enum):
    """Who drafts: an independent model, or the prediction heads inside the target."""

    DRAFT_MODEL = "draft_model"
    MTP = "mtp"


class SpeculativeConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Draft ``num_speculative_tokens`` tokens per step and let the target check them.

    Args:
        method: who drafts.
        num_speculative_tokens: width of the draft, at least 1.
        model: the draft model; needed by the method draft_model, refused by mtp.
        draft_fxb_path: compiled artifact of the draft model; refused by mtp.

    Raises:
        InvalidOption: a value breaks a rule.

    Source:
        furiosa-llm 2026.4.0 package, speculative configuration.
    """

    method: SpeculativeMethod
    num_speculative_tokens: int
    model: str | None = None
    draft_fxb_path: str | None = None

    def __post_init__(self) -> None:
        settle_types(self, SPECULATIVE)
        enforce(SPECULATIVE_RULES, self)


SPECULATIVE_RULES: Final[tuple[Rule[SpeculativeConfig], ...]] = (
    Rule(
        name="speculative-tokens-positive",
        option=f"{SPECULATIVE}.num_speculative_tokens",
        expected="a whole number, at least 1",
        way_out=f"leave {SPECULATIVE} out to draft nothing",
        source=SOURCE,
        holds=lambda config: config.num_speculative_tokens >= 1,
    ),
    Rule(
        name="draft-model-is-named",
        option=f"{SPECULATIVE}.model",
        expected="the draft model beside the method draft_model",
        way_out="give model, or use the method mtp",
        source=SOURCE,
        holds=lambda config: (
            config.method is not SpeculativeMethod.DRAFT_MODEL or bool(config.model)
        ),
    ),
    Rule(
        name="mtp-has-no-draft-model",
        option=f"{SPECULATIVE}.model",
        expected="nothing beside the method mtp",
        way_out="leave model out, or use the method draft_model",
        source=SOURCE,
        holds=lambda config: config.method is not SpeculativeMethod.MTP or config.model is None,
    ),
    Rule(
        name="mtp-has-no-draft-artifact",
        option=f"{SPECULATIVE}.draft_fxb_path",
        expected="nothing beside the method mtp",
        way_out="leave draft_fxb_path out, or use the method draft_model",
        source=SOURCE,
        holds=lambda config: (
            config.method is not SpeculativeMethod.MTP or config.draft_fxb_path is None
        ),
    ),
)


def read_speculative(options: Mapping[str, object]) -> SpeculativeConfig | None:
    """Read speculation from keyword options: nested, as JSON text, or in single options.

    Args:
        options: may hold ``speculative_config`` or the keys of `FLAT`; others are not looked at.

    Returns:
        The configuration, or None where no option asks for speculation.

    Raises:
        InvalidOption: both forms are given, or a value breaks a rule.
    """
    nested = options.get(SPECULATIVE)
    flat = {FLAT[name]: options[name] for name in FLAT if options.get(name) is not None}
    if nested is not None and flat:
        given = ", ".join(name for name in FLAT if options.get(name) is not None)
        raise InvalidOption(
            option=SPECULATIVE,
            value=nested,
            expected=f"it alone, or the single options ({given}) alone",
            way_out="leave out one of the two forms",
        )
    if isinstance(nested, SpeculativeConfig):
        return nested
    if nested is None:
        return build(SpeculativeConfig, flat, SPECULATIVE) if flat else None
    return build(SpeculativeConfig, read_table(SPECULATIVE, nested), SPECULATIVE)


def read_table(option: str, given: object) -> Mapping[str, object]:
    """Return a table of options that was given as a mapping or as the text of a JSON object.

    Raises:
        InvalidOption: it is neither, or the text gives a key twice.
    """
    twice: list[str] = []

    def once(pairs: list[tuple[str, object]]) -> dict[str, object]:
        counted = Counter(key for key, _ in pairs)
        twice.extend(repr(key) for key, count in counted.items() if count > 1)
        return dict(pairs)

    table = given
    if isinstance(given, str):
        try:
            table = json.loads(given, object_pairs_hook=once)
        except (ValueError, RecursionError):
            table = None
    if twice:
        raise InvalidOption(
            option=option,
            value=given,
            expected=f"each key once, and {' and '.join(twice)} is there again",
            way_out="leave one of the two out",
        )
    if not isinstance(table, Mapping):
        raise InvalidOption(
            option=option,
            value=given,
            expected="a JSON object",
            way_out="mind the quotes of the shell",
        )
    return cast("Mapping[str, object]", table)


def check_draft_vocabulary(
    draft_model: str | None, target: Mapping[str, int], draft: Mapping[str, int]
) -> None:
    """Check that a draft model gives each token the id that the target gives it.

    Args:
        draft_model: name of the draft model, for the message.
        target: token ids of the target model by token.
        draft: token ids of the draft model by token.

    Raises:
        InvalidOption: the maps differ; the sentence names the first token in sorted order.

    Source:
        furiosa-llm 2026.4.0 package, speculative configuration.
    """
    for token in sorted(target.keys() | draft.keys()):
        if target.get(token) != draft.get(token):
            found = f"{target.get(token, 'none')} in the target, {draft.get(token, 'none')} in it"
            raise InvalidOption(
                option=f"{SPECULATIVE}.model",
                value=draft_model,
                expected=f"a draft model with the target's token ids ({token!r}: {found})",
                way_out="use one with the tokenizer of the target",
            )
