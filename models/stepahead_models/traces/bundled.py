"""The traces that ship with the package, for what needs no download."""

from pathlib import Path
from typing import Final

_DATA: Final = Path(__file__).parents[1] / "data"
BUNDLED_NAME: Final = "mooncake_conversation_head.jsonl.zst"
DEMO_NAME: Final = "azure_conversation_head.csv.zst"


def bundled_trace() -> Path:
    """Path of the head of the Mooncake conversation trace; ``data/README.md`` says where from."""
    return _DATA / BUNDLED_NAME


def demo_trace() -> Path:
    """Path of the head of the Azure conversation trace, whose prompts leave one device room."""
    return _DATA / DEMO_NAME
