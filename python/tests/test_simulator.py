"""Simulations of traces in arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from trail_rt import ModelError, RequestError, Simulator


def burst() -> dict[str, Any]:
    """In each second 30 requests, one of six with a long answer, predicted to a quarter."""
    at = np.arange(600)
    output = np.where(at % 6 == 0, 400 + at % 90, 10 + at % 35)
    predicted = output * np.where(at % 2 == 0, 0.75, 1.25)
    return {"arrival": at / 30, "prompt": 40 + at % 200, "output": output, "predicted": predicted}


def test_shortest_first_beats_arrival_and_stays_above_the_bound() -> None:
    trace = burst()
    simulator = Simulator("a100-80g:8b", max_running=24)
    fcfs, trail, oracle = (
        simulator.run(trace, policy, refined=refined)
        for policy, refined in (("fcfs", "none"), ("trail", "probe"), ("oracle", "none"))
    )
    assert trail["mean_latency"] < 0.8 * fcfs["mean_latency"]
    assert simulator.lower_bound(trace) <= oracle["mean_latency"] <= trail["mean_latency"]
    assert trail["prediction_mae"] is not None and fcfs["prediction_mae"] is None
    for result in (fcfs, trail, oracle):
        assert result["tokens"] == trace["output"].sum()
        assert np.array_equal(np.sort(result["request"]), np.arange(600))
        assert (result["ttft"] <= result["latency"]).all()
        assert result["mean_latency"] == pytest.approx(result["latency"].mean())
    assert fcfs["preemptions"].sum() == 0 < trail["preemptions"].sum()


def test_a_data_frame_is_a_trace_in_any_order() -> None:
    trace = burst()
    frame = pd.DataFrame(trace).sample(frac=1.0, random_state=1)
    simulator = Simulator(max_running=24)
    by_frame, by_dict = simulator.run(frame, "sjf"), simulator.run(trace, "sjf")
    assert by_frame["mean_latency"] == pytest.approx(by_dict["mean_latency"])
    # Numbers of requests are rows of the frame.
    rows = frame["arrival"].to_numpy()[by_frame["request"]]
    assert np.allclose(rows, by_frame["arrival"])


def test_a_trace_of_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    lines += [f"2023-11-16 18:00:0{at}.000000,{10 + at},{5 + at}" for at in range(4)]
    path.write_text("\n".join(lines), encoding="utf-8")
    trace = Simulator.read_trace(path)
    assert trace["arrival"].tolist() == [0, 1, 2, 3]
    assert trace["prompt"].tolist() == [10, 11, 12, 13]
    assert Simulator().run(trace, "fcfs")["output"].tolist() == [5, 6, 7, 8]
    recorded = '{"id":7,"arrival_s":0.5,"prompt_tokens":3,"output_tokens":2,"r":9.5,"remaining":[2,1]}'
    path.write_text(recorded, encoding="utf-8")
    trace = Simulator.read_trace(path)
    assert trace["predicted"].tolist() == [9.5]
    assert Simulator().run(trace, "trail")["prediction_mae"] == 0.0
    path.write_text("nothing", encoding="utf-8")
    with pytest.raises(ModelError):
        Simulator.read_trace(path)


def test_wrong_traces_are_refused() -> None:
    trace = burst()
    simulator = Simulator(max_running=24)
    with pytest.raises(RequestError, match="no output"):
        simulator.run({"arrival": [0.0], "prompt": [1]})
    with pytest.raises(RequestError, match="prompt has 2 values, not 600"):
        simulator.run({**trace, "prompt": [1, 2]})
    with pytest.raises(RequestError, match="request 0: prompt_tokens"):
        simulator.run({**trace, "prompt": np.zeros(600)})
    with pytest.raises(RequestError, match="output has -1"):
        simulator.run({**trace, "output": np.full(600, -1)})
    with pytest.raises(RequestError, match="whole numbers"):
        simulator.run({**trace, "output": np.full(600, 1.5)})
    with pytest.raises(RequestError, match="request 0: arrival_s"):
        simulator.run({**trace, "arrival": np.full(600, np.nan)})
    with pytest.raises(RequestError, match="request 3: priority is 128"):
        simulator.run({**trace, "priority": np.where(np.arange(600) == 3, 128, 0)})
    with pytest.raises(RequestError, match="refined is 'best'"):
        simulator.run({**trace, "remaining": [np.arange(n) for n in trace["output"]]}, refined="best")
    with pytest.raises(RequestError, match="remaining has 1 arrays"):
        simulator.run({**trace, "remaining": [[1.0]]})
    with pytest.raises(RequestError, match="request 0: remaining has 1 entries"):
        simulator.run({**trace, "remaining": [[1.0]] * 600})
    for wrong in (np.nan, -1.0, np.inf):
        remaining = [np.full(tokens, wrong) for tokens in trace["output"]]
        with pytest.raises(RequestError, match="request 0: a prediction is"):
            simulator.run({**trace, "remaining": remaining})
    with pytest.raises(RequestError, match="unknown step model"):
        Simulator("abacus").run(trace)
