"""The probe on arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from trail_rt import LLM, ModelError, Probe, RequestError, SamplingParams
from trail_rt.prompts import BUNDLED_MODEL

FloatArray = npt.NDArray[np.float32]


def answers(width: int = 24) -> tuple[FloatArray, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Rows of 300 answers, in which the tokens that remain are a direction of the activation."""
    rng = np.random.default_rng(3)
    remaining, numbers = [], []
    for answer in range(300):
        length = int(rng.integers(20, 200))
        steps = np.arange(1, length, 8)
        remaining += list(length - steps)
        numbers += [answer] * len(steps)
    left = np.array(remaining)
    signal = rng.normal(size=width)
    noise = rng.normal(size=(len(left), width))
    rows = np.outer(left / 50.0, signal) + 0.3 * noise
    return rows.astype(np.float32), left, np.array(numbers)


def test_a_probe_learns_and_its_file_is_the_same(tmp_path: Path) -> None:
    rows, remaining, numbers = answers()
    probe = Probe.train(rows, remaining, answers=numbers, layer=3, hidden=64, epochs=12)
    constant = float(np.abs(remaining - np.median(remaining)).mean())
    error = float(np.abs(probe.predict(rows) - remaining).mean())
    assert probe.mae is not None and error < 0.4 * constant and probe.mae < 0.4 * constant
    path = tmp_path / "probe.safetensors"
    probe.save(path)
    loaded = Probe.load(path)
    assert np.array_equal(loaded.predict(rows), probe.predict(rows))
    assert (loaded.width, loaded.layers, loaded.mae) == (24, [3], None)
    assert loaded.edges == probe.edges and len(loaded.edges) == 10 + 1
    p = probe.probabilities(rows[:5])
    assert p.shape == (5, 10) and np.allclose(p.sum(axis=1), 1.0, atol=1e-4)


def test_activations_are_read_where_they_are() -> None:
    torch = pytest.importorskip("torch")
    rows, remaining, numbers = answers()
    tensor = torch.from_numpy(rows)
    assert np.asarray(tensor).ctypes.data == rows.ctypes.data
    options: dict[str, Any] = {"answers": numbers, "hidden": 16, "epochs": 2}
    by_tensor = Probe.train(tensor, torch.from_numpy(remaining), **options)
    by_array = Probe.train(rows, remaining, **options)
    assert np.array_equal(by_tensor.predict(tensor), by_array.predict(rows))
    for wrong in (tensor.bfloat16(), tensor.double(), tensor.clone().requires_grad_()):
        with pytest.raises(RequestError, match="float32"):
            by_tensor.predict(wrong)


def test_the_bundled_probe_predicts_and_tracks() -> None:
    probe = Probe.load(BUNDLED_MODEL / "probe.safetensors")
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(6, probe.width)).astype(np.float32)
    p = probe.probabilities(rows)
    middles = (np.array(probe.edges[1:]) + np.array(probe.edges[:-1])) / 2
    assert np.allclose(probe.predict(rows), p @ middles, rtol=1e-3)
    tracker = probe.tracker(2)
    first = [tracker.observe(0, token + 1, p[token]) for token in range(6)]
    tracker.forget(0)
    assert tracker.observe(0, 1, p[0]).remaining == first[0].remaining
    assert all(of.p10 <= of.p50 <= of.p90 for of in first)
    with pytest.raises(RequestError, match="no place 2"):
        tracker.observe(2, 1, p[0])
    tracker.observe(0, 2, p[1])
    for wrong in (np.full_like(p[0], np.nan), np.zeros_like(p[0]), -p[0]):
        with pytest.raises(RequestError, match="these are no probabilities"):
            tracker.observe(0, 3, wrong)
    # They were not observed.
    assert tracker.observe(0, 3, p[2]).remaining == first[2].remaining
    for places in (0, 2**40):
        with pytest.raises(RequestError, match="give 1 to 1048576"):
            probe.tracker(places)


def test_the_engine_ranks_by_a_trained_probe(tmp_path: Path) -> None:
    rows, remaining, _ = answers(width=256)
    path = tmp_path / "probe.safetensors"
    Probe.train(rows, remaining, layer=3, hidden=16, epochs=1).save(path)
    llm = LLM(probe=path, threads=1, force_probe=True)
    output = llm.generate("Once upon", SamplingParams(max_tokens=4))[0].outputs[0]
    assert llm.llm_engine.policy.startswith("trail") and output.predicted_length is not None


def test_wrong_arrays_are_refused(tmp_path: Path) -> None:
    rows, remaining, numbers = answers()
    probe = Probe.train(rows, remaining, hidden=16, epochs=1)
    assert probe.predict(rows[:0]).shape == (0,)
    for wrong, says in (
        (rows.astype(np.float64), "float64"),
        (rows[0], r"shape \(24,\)"),
        (np.asfortranarray(rows), "ascontiguousarray"),
        (np.ascontiguousarray(rows[:, :20]), "20 wide, and the probe reads 24"),
    ):
        with pytest.raises(RequestError, match=says):
            probe.predict(wrong)
    for nothing in (np.nan, np.inf):
        broken = rows[:9].copy()
        broken[5, 3] = nothing
        with pytest.raises(RequestError, match="row 5 of the activations has NaN or infinity"):
            probe.predict(broken)
    with pytest.raises(RequestError, match="remaining has 3 values"):
        Probe.train(rows, [1, 2, 3])
    with pytest.raises(RequestError, match="row 7 has NaN"):
        broken = rows.copy()
        broken[7, 3] = np.nan
        Probe.train(broken, remaining, answers=numbers)
    with pytest.raises(RequestError, match="collect more"):
        Probe.train(rows[:2], remaining[:2])
    assert np.array_equal(probe.predict(rows[:3].tolist()), probe.predict(rows[:3]))
    with pytest.raises(RequestError, match="no array can be made"):
        probe.predict([[1.0], [2.0, 3.0]])
    for name, wrong in (("rate", -1.0), ("rate", 1e9), ("rate", np.nan), ("layer", 10**9)):
        options: dict[str, Any] = {name: wrong}
        with pytest.raises(RequestError, match="give a rate above 0 and at most 1, and a layer"):
            Probe.train(rows, remaining, **options)
    with pytest.raises(RequestError, match="answers has -1: give whole numbers from 0 to"):
        Probe.train(rows, remaining, answers=np.full(len(rows), -1))
    with pytest.raises(RequestError, match="remaining has 4294967296: give whole numbers"):
        Probe.train(rows, np.full(len(rows), 2**32))
    with pytest.raises(RequestError, match="bins is 0"):
        Probe.train(rows, remaining, bins=0)
    with pytest.raises(ModelError, match="probe.safetensors"):
        Probe.load(tmp_path / "probe.safetensors")
