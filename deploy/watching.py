#!/usr/bin/env python3
"""Checks what watches trail-rt, in real programs: promtool checks the alert rules and runs their
tests; a Prometheus scrapes a server under load, and each query of the Grafana dashboard must give a
value; the dashboard must be one of Grafana's schema (grafana-foundation-sdk). Grafana itself is in
no package of Debian's or PyPI's.

usage: watching.py PROGRAM PROMETHEUS_DIR   (folder with prometheus and promtool)
"""

import json
import math
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request

HERE = pathlib.Path(__file__).parent
CONFIG = """
global: { scrape_interval: 1s, evaluation_interval: 1s }
rule_files: [%s]
scrape_configs: [{ job_name: trail-rt, static_configs: [{ targets: ["%s"] }] }]
"""
# Without a second answer to wait for, or a cache, nothing happens.
MAY_BE_EMPTY = {"Prefix cache", "Speculation"}


def values(query):
    """The values of a query in Prometheus."""
    url = "http://127.0.0.1:9471/api/v1/query?query=" + urllib.parse.quote(query)
    with urllib.request.urlopen(url, timeout=10) as answer:
        return [float(one["value"][1]) for one in json.load(answer)["data"]["result"]]


def begin(command, ready, log):
    """Starts a program, and waits for the line that `ready` finds something in."""
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        log.append(line)
        if found := ready(line):
            threading.Thread(target=process.stderr.read, daemon=True).start()
            return process, found
    sys.exit(f"error: {command[0]} ended: {''.join(log)}")


def load(address):
    """Requests that wait for each other, with prompts that share their beginning."""
    def ask(seed):
        body = {"prompt": "Count from one to twenty. " * 20, "max_tokens": 100, "seed": seed}
        request = urllib.request.Request(f"http://{address}/v1/completions",
                                         json.dumps(body).encode())
        urllib.request.urlopen(request, timeout=60).read()
    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(150)]
    for thread in threads:
        thread.start()
        time.sleep(0.03)
    for thread in threads:
        thread.join()


def check_schema(dashboard):
    from grafana_foundation_sdk.models.dashboard import Dashboard
    rest = Dashboard.from_json(dashboard).to_json()
    unknown = sorted(set(dashboard) - set(rest))
    if unknown or len(rest["panels"]) != len(dashboard["panels"]):
        sys.exit(f"error: fields that Grafana's schema does not have: {unknown}")
    print(f"ok: {len(dashboard['panels'])} panels of Grafana's schema")


def main(program, folder):
    rules = HERE / "prometheus/trail-rt.rules.yml"
    promtool = f"{folder}/promtool"
    for command in (["check", "rules", rules], ["test", "rules", rules.with_suffix(".test.yml")]):
        subprocess.run([promtool, *command], check=True)
    dashboard = json.loads((HERE / "grafana/trail-rt.json").read_text())
    check_schema(dashboard)
    server, address = begin([program, "serve", "--port", "0", "--max-running", "4"],
                            lambda line: line.partition("://")[2].strip(), [])
    with tempfile.TemporaryDirectory() as data:
        config = pathlib.Path(data) / "prometheus.yml"
        config.write_text(CONFIG % (rules.resolve(), address))
        prometheus, _ = begin([f"{folder}/prometheus", f"--config.file={config}",
                               f"--storage.tsdb.path={data}/tsdb",
                               "--web.listen-address=127.0.0.1:9471"],
                              lambda line: "Server is ready" in line, [])
        try:
            # Rates need a scrape before the load.
            while not values("trail_steps_total"):
                time.sleep(0.2)
            time.sleep(1.5)
            load(address)
            time.sleep(3)
            empty = []
            for panel in dashboard["panels"]:
                for target in panel["targets"]:
                    query = target["expr"].replace("$__rate_interval", "1m")
                    query = query.replace("$job", ".*").replace("$instance", ".*")
                    if all(math.isnan(one) for one in values(query)):
                        empty.append((panel["title"], target["expr"]))
            empty = [one for one in empty if one[0] not in MAY_BE_EMPTY]
            if empty:
                sys.exit(f"error: queries without a value: {empty}")
            count = sum(len(panel["targets"]) for panel in dashboard["panels"])
            print(f"ok: {count} queries of the dashboard in Prometheus")
        finally:
            prometheus.terminate()
            prometheus.wait()
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
