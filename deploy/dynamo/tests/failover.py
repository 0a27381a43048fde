#!/usr/bin/env python3
"""Streams outlive their workers: python3 tests/failover.py [a b c ...]

Each case starts its own processes on loopback and is bounded in time.
"""

import random
import signal
import sys
import time

from cluster import Cluster, count_whole, is_whole, kill, wait_until

# A step of 20 ms: a stream of 150 tokens takes 3 s.
LENGTH = 150
# One worker has slots for all six streams: what is left of a silence is Dynamo's.
EIGHT = ("--max-running", 8)


def six_streams(cluster):
    return cluster.ask_all([{"prompt": "x" * (3 + at), "max_tokens": LENGTH} for at in range(6)])


def both_stream(cluster):
    """True once each of two workers has streams with tokens behind them."""
    loads = cluster.loads()
    return len(loads) == 2 and all(len(load["running"]) >= 2 for load in loads)


def kill_one_of_two(cluster, which=signal.SIGKILL):
    """The answers of six streams over two workers; one worker gets a signal in the middle."""
    cluster.add_workers(2, EIGHT)
    finish = six_streams(cluster)
    wait_until("both workers stream", lambda: both_stream(cluster))
    time.sleep(0.5)
    kill(cluster.workers[0], which)
    return finish()


def a_worker_dies():
    """2 workers, 6 streams, kill -9 of one: all whole."""
    with Cluster() as cluster:
        answers = kill_one_of_two(cluster)
        whole, moved = count_whole(answers, [LENGTH] * 6), cluster.migrations()
        print(f"  {whole} of 6 whole, {moved} moved, "
              f"longest silence {max(answer.gap for answer in answers):.2f} s")
        assert whole == 6, [answer.error or answer.text for answer in answers]
        assert all(answer.tokens == LENGTH for answer in answers)
        assert 1 <= moved <= 6


def b_limit_0_loses():
    """The same with migration limit 0 must lose streams: it guards case a."""
    with Cluster(["--migration-limit", "0"]) as cluster:
        whole = count_whole(kill_one_of_two(cluster), [LENGTH] * 6)
        print(f"  {whole} of 6 whole")
        assert 1 <= whole < 6


def c_sigterm_drains():
    """SIGTERM lets a worker's streams end where they are."""
    with Cluster() as cluster:
        answers = kill_one_of_two(cluster, signal.SIGTERM)
        whole, moved = count_whole(answers, [LENGTH] * 6), cluster.migrations()
        code = cluster.workers[0].wait(timeout=30)
        print(f"  {whole} of 6 whole, {moved} moved, exit code {code}")
        assert (whole, moved, code) == (6, 0, 0)
        assert is_whole(cluster.ask("x", 20), 20), "the other worker serves"
        assert cluster.ask("x", 20, model="another").status == 404, "no model of any worker"


def d_kill_while_idle():
    """A worker that died without a request is still in discovery: new requests move on."""
    with Cluster() as cluster:
        cluster.add_workers(2)
        kill(cluster.workers[0])
        cluster.workers[0].wait()
        whole = count_whole(six_streams(cluster)(), [LENGTH] * 6)
        print(f"  {whole} of 6 whole, {cluster.migrations()} moved")
        assert whole == 6


def many(workers, requests, kills, rate):
    """Requests of mixed lengths at `rate` a second, while workers are killed."""
    rng = random.Random(5)
    with Cluster() as cluster:
        # Many processes share the cores: slower steps.
        cluster.add_workers(workers, ["--step-cost", cluster.step_costs(60)])
        lengths = [rng.randint(20, 120) for _ in range(requests)]
        asked = [{"prompt": "x" * rng.randint(1, 60), "max_tokens": n} for n in lengths]
        finish = cluster.ask_all(asked, gap=1 / rate)
        victims = rng.sample(cluster.workers, kills)
        for victim in victims:
            time.sleep(requests / rate / (kills + 1))
            kill(victim)
        answers = finish(600)
        whole, moved = count_whole(answers, lengths), cluster.migrations()
        firsts = sorted(answer.first for answer in answers)
        print(f"  {whole} of {requests} whole, {moved} moved, {kills} of {workers} workers killed, "
              f"p99 time to first token {firsts[len(firsts) * 99 // 100]:.2f} s")
        bad = [answer for answer, n in zip(answers, lengths) if not is_whole(answer, n)]
        assert whole == requests, [(each.status, each.error, len(each.text)) for each in bad]
        assert moved > 0, "no worker had a stream when it died"


def e_many():
    """20 workers, 300 requests, 4 kills."""
    many(20, 300, 4, 20)


def e_50():
    """By hand: 50 workers, 400 requests, 6 kills."""
    many(50, 400, 6, 20)


def f_preempted_for_long():
    """A request that is preempted for longer than every timeout (2 s, 4 s) survives."""
    with Cluster() as cluster:
        # One slot: short requests preempt the long one for as long as they come. Without the tail
        # bound, which would end that, and by the clients' predictions alone.
        cluster.add_workers(1, ["--max-running", 1, "--policy", "trail:1", "--tail-bound", 0,
                                "--noise", "none"])
        for chat in (False, True):
            hint = {"nvext": {"agent_hints": {"osl": 2000}}}
            finish = cluster.ask_all([{"prompt": "x", "max_tokens": 60, "chat": chat, **hint}])
            wait_until("the long one runs", lambda: cluster.live() == 1)
            time.sleep(0.3)
            short = {"prompt": "y", "max_tokens": 20, "nvext": {"agent_hints": {"osl": 20}}}
            # 0.4 s of work every 0.2 s, for 3.6 s.
            shorts = cluster.ask_all([short] * 18, gap=0.2)()
            assert all(is_whole(answer, 20) for answer in shorts)
            [long] = finish()
            print(f"  {'chat' if chat else 'completion'}: silent for {long.gap:.1f} s, then whole")
            assert is_whole(long, 60), long
            assert long.gap > 4.5, "it was not preempted for long"
        assert cluster.migrations() == 0


def g_all_dead():
    """Without a worker: 503 with Retry-After; a retry succeeds once one is back."""
    with Cluster() as cluster:
        cluster.add_workers(2)
        for worker in cluster.workers:
            kill(worker)
            worker.wait()
        for seconds in (0.0, 1.0):
            time.sleep(seconds)
            print(f"  {refused(cluster)}, Retry-After 1")
        cluster.add_workers(1)
        assert is_whole(cluster.ask("x", 20), 20), "the retry"


def refused(cluster):
    """The status of a request that no worker can take: 503, with Retry-After."""
    answer = cluster.ask("x", 10, timeout=30)
    retry = {name.lower(): value for name, value in answer.headers.items()}.get("retry-after")
    assert (answer.status, retry) == (503, "1"), answer
    return answer.status


def h_disconnect():
    """A client that goes away frees its slot."""
    with Cluster() as cluster:
        cluster.add_workers(1)

        def leave(answer):
            if len(answer.text) > 5:
                raise StopIteration

        answer = cluster.ask("x", 400, on_text=leave)
        assert answer.error == "disconnected", answer
        begin = time.monotonic()
        wait_until("the slot is free", lambda: cluster.live() == 0, 5)
        print(f"  free after {time.monotonic() - begin:.2f} s")


def i_hang():
    """A worker that hangs (SIGSTOP) is left within 3 s."""
    with Cluster() as cluster:
        cluster.add_workers(2, EIGHT)
        finish = six_streams(cluster)
        wait_until("both workers stream", lambda: both_stream(cluster))
        time.sleep(0.5)
        kill(cluster.workers[0], signal.SIGSTOP)
        begin = time.monotonic()
        time.sleep(0.7)
        quick = cluster.ask("x", 20)
        assert is_whole(quick, 20) and quick.end < 3, "a new request avoids the silent worker"
        answers = finish()
        gap = max(answer.gap for answer in answers)
        whole = count_whole(answers, [LENGTH] * 6)
        print(f"  {whole} of 6 whole, longest silence {gap:.2f} s")
        assert whole == 6 and gap < 3
        assert time.monotonic() - begin < 15


def j_breakdown():
    """A worker whose engine breaks down leaves, exits with 1, and its streams go on elsewhere."""
    with Cluster() as cluster:
        cluster.add_workers(1, [*EIGHT, "--break-after", 60])
        cluster.add_workers(1, EIGHT)
        broken, other = cluster.workers
        answers = six_streams(cluster)()
        whole, moved = count_whole(answers, [LENGTH] * 6), cluster.migrations()
        code = broken.wait(timeout=30)
        print(f"  {whole} of 6 whole, {moved} moved, exit code {code}")
        assert (whole, code) == (6, 1) and moved >= 1, [answer.error for answer in answers]
        wait_until("its reports end", lambda: len(cluster.loads()) == 1, 5)
        assert is_whole(cluster.ask("x", 20), 20) and other.poll() is None


def k_last_worker_drains():
    """While the last workers of a model drain, and after, new requests get 503; open ones end."""
    with Cluster() as cluster:
        cluster.add_workers(1, model="other")
        cluster.add_workers(2, EIGHT)
        finish = six_streams(cluster)
        wait_until("all run", lambda: sum(len(load["running"]) for load in cluster.loads()) == 6)
        draining = cluster.workers[1:]
        for worker in draining:
            kill(worker, signal.SIGTERM)
        wait_until("they leave", lambda: cluster.ask("x", 1, timeout=30).status != 200, 5)
        refusals = 0
        while any(worker.poll() is None for worker in draining):
            refused(cluster)
            refusals += 1
            time.sleep(0.1)
        # Dynamo forgets the model when the lease of its last worker ends (10 s).
        gone = time.monotonic()
        while time.monotonic() < gone + 15:
            refused(cluster)
            time.sleep(0.1)
        whole = count_whole(finish(), [LENGTH] * 6)
        print(f"  {refusals} refused while they drain, {whole} of 6 whole")
        assert whole == 6 and refusals > 5
        assert is_whole(cluster.ask("x", 20, model="other"), 20)
        assert cluster.ask("x", 20, model="unknown").status == 404


def l_no_reports():
    """Workers whose reports do not arrive are chosen by the number of their requests."""
    # A port of loopback would arrive: an address that nothing can connect to.
    with Cluster(env={"DYN_EVENT_PLANE_HOST": "224.0.0.1"}) as cluster:
        cluster.add_workers(2, EIGHT, reports=False)
        finish = six_streams(cluster)
        time.sleep(1)
        assert cluster.loads() == []
        kill(cluster.workers[0])
        whole, moved = count_whole(finish(), [LENGTH] * 6), cluster.migrations()
        print(f"  {whole} of 6 whole, {moved} moved")
        assert whole == 6 and 1 <= moved < 6


def m_router_drains():
    """SIGTERM lets a router's streams end, for longer than Dynamo's own limits (5 s)."""
    with Cluster() as cluster:
        cluster.add_workers(1, EIGHT)
        finish = cluster.ask_all([{"prompt": "x", "max_tokens": 400, "chat": chat}
                                  for chat in (False, True)])
        wait_until("both run", lambda: cluster.live() == 2)
        begin = time.monotonic()
        kill(cluster.router, signal.SIGTERM)
        whole = count_whole(finish(), [400] * 2)
        code = cluster.router.wait(timeout=30)
        print(f"  {whole} of 2 whole, exit code {code} after {time.monotonic() - begin:.1f} s")
        assert (whole, code) == (2, 0) and time.monotonic() - begin > 6


def n_refusals():
    """Requests that no worker answers are refused by name: a path, a length, a parameter."""
    with Cluster() as cluster:
        cluster.add_workers(1)
        status, why = cluster.post("/v1/responses", {"model": "m", "input": "x", "stream": True})
        print(f"  {status}: {why}")
        assert status == 404 and "/v1/chat/completions" in why
        # 18 MB of text, which would be 100 MB and more once parsed.
        status, why = cluster.post("/v1/completions", {"model": "m", "prompt": [1] * (6 << 20)})
        print(f"  {status}: {why}")
        assert status == 413 and "--max-body" in why
        begin = time.monotonic()
        status, why = cluster.post("/v1/completions", {"model": "m", "prompt": [1] * (1 << 20)})
        seconds = time.monotonic() - begin
        print(f"  {status} after {seconds:.1f} s: {why}")
        assert status == 400 and "context_length" in why and seconds < 10, "Dynamo hashed it"
        refused = {"allowed_token_ids": [5], "bad_words_token_ids": [[5]]}
        for name, value in refused.items():
            answer = cluster.ask("x", 5, **{name: value})
            print(f"  {answer.status}: {answer.error.strip()}")
            assert answer.status != 200 and name in answer.error, answer
        assert is_whole(cluster.ask("x", 20), 20)


CASES = {
    "a": a_worker_dies,
    "b": b_limit_0_loses,
    "c": c_sigterm_drains,
    "d": d_kill_while_idle,
    "e": e_many,
    "f": f_preempted_for_long,
    "g": g_all_dead,
    "h": h_disconnect,
    "i": i_hang,
    "j": j_breakdown,
    "k": k_last_worker_drains,
    "l": l_no_reports,
    "m": m_router_drains,
    "n": n_refusals,
}
BY_HAND = {"e50": e_50}


def main():
    names = sys.argv[1:] or list(CASES)
    known = CASES | BY_HAND
    unknown = [name for name in names if name not in known]
    if unknown:
        sys.exit(f"no case {unknown[0]}: choose from {' '.join(known)}")
    failed = []
    for name in names:
        begin = time.monotonic()
        print(f"{name}: {known[name].__doc__.splitlines()[0]}", flush=True)
        try:
            known[name]()
            print(f"  held, {time.monotonic() - begin:.1f} s", flush=True)
        except AssertionError as failure:
            failed.append(name)
            print(f"  FAILED, {time.monotonic() - begin:.1f} s: {failure}", flush=True)
    sys.exit(f"failed: {' '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
