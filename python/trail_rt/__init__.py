"""Serves Llama-family models, and runs first the requests with the least left to say.

`LLM` and `AsyncLLM` answer prompts, by vLLM's names. `Scheduler` orders the requests of another
engine, `Simulator` those of a trace, and `Probe` predicts from activations what is left.
"""

from trail_rt._native import (
    EngineError,
    Estimate,
    LengthPredictor,
    ModelError,
    Plan,
    Ranks,
    RequestError,
    Row,
    Scheduler,
    Tracker,
    TrailError,
)
from trail_rt.async_llm import AsyncLLM
from trail_rt.llm import LLM
from trail_rt.outputs import CompletionOutput, RequestOutput
from trail_rt.probe import Probe
from trail_rt.prompts import ChatMessage, Prompt, TextPrompt, TokensPrompt
from trail_rt.sampling_params import RequestOutputKind, SamplingParams
from trail_rt.simulator import SimulationResult, Simulator

__all__ = [
    "LLM",
    "AsyncLLM",
    "ChatMessage",
    "CompletionOutput",
    "EngineError",
    "Estimate",
    "LengthPredictor",
    "ModelError",
    "Plan",
    "Probe",
    "Prompt",
    "Ranks",
    "RequestError",
    "RequestOutput",
    "RequestOutputKind",
    "Row",
    "SamplingParams",
    "Scheduler",
    "SimulationResult",
    "Simulator",
    "TextPrompt",
    "TokensPrompt",
    "Tracker",
    "TrailError",
]
