"""The bundled model's engine, one for all tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trail_rt import LLM
from trail_rt.prompts import BUNDLED_MODEL


@pytest.fixture(scope="session")
def llm() -> LLM:
    return LLM(threads=2)


@pytest.fixture(scope="session")
def golden() -> list[dict[str, Any]]:
    """Greedy answers of the bundled model, which the engine's own tests compare with too."""
    lines = Path(BUNDLED_MODEL, "golden.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]
