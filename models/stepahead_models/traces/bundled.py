"""The trace that ships with the package, for demonstrations that need no download."""

from importlib.resources import files
from pathlib import Path
from typing import Final

BUNDLED_NAME: Final = "mooncake_conversation_head.jsonl.zst"


def bundled_trace() -> Path:
    """Path of the head of the Mooncake conversation trace; ``data/README.md`` says where from."""
    return Path(str(files("stepahead_models").joinpath("data", BUNDLED_NAME)))
