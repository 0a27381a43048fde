"""A day's requests in miniature leave no memory behind."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
from trail_rt import LLM, SamplingParams, Scheduler


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / 2**20


def test_200_000_requests_of_a_scheduler() -> None:
    scheduler = Scheduler("trail", max_running=64, max_requests=256, num_blocks=4096)
    live: dict[int, int] = {}
    sizes = []
    for number in range(200_000):
        request = scheduler.submit(16, 64, arrival=number * 1e-3, predicted_length=2.0)
        live[request] = 0
        if len(live) == 128:
            plan = scheduler.plan(number * 1e-3)
            scheduler.advance()
            for row in plan.rows:
                live[row.request] += 1
                scheduler.predict(row.request, 1.0)
                if live[row.request] == 1:
                    scheduler.finish(row.request)
                    del live[row.request]
        if number % 20_000 == 19_999:
            sizes.append(resident_mib())
    assert max(sizes[1:]) - sizes[1] < 2.0, sizes


@pytest.mark.long
def test_200_000_requests_of_an_engine() -> None:
    llm = LLM(threads=2)
    params = SamplingParams(max_tokens=2)
    sizes = []
    for batch in range(100):
        prompts = [[1 + (batch * 2000 + number) % 1000, 5, 7] for number in range(2000)]
        assert all(output.finished for output in llm.generate(prompts, params))
        sizes.append(resident_mib())
    # The prefix cache and the buffers of an answer grow at first.
    assert max(sizes[20:]) - sizes[20] < 4.0, sizes[::5]
