#!/usr/bin/env python3
"""Discovery by etcd (one node): python3 tests/etcd.py [PATH OF etcd]

Streams outlive a worker, and a restart of etcd within the leases of 10 s. Without a path it takes
the Debian package etcd-server, unpacked beside the build.
"""

import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from cluster import Cluster, count_whole, is_whole, kill, wait_until
from failover import LENGTH, both_stream, six_streams

PORT = 23790
URL = f"http://127.0.0.1:{PORT}"


def find_etcd():
    if len(sys.argv) > 1:
        return sys.argv[1]
    if shutil.which("etcd"):
        return shutil.which("etcd")
    folder = Path(__file__).resolve().parent.parent / "target" / "etcd"
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "usr/bin/etcd").exists():
        subprocess.run(["apt-get", "download", "-qq", "etcd-server"], cwd=folder, check=True)
        [package] = folder.glob("etcd-server*.deb")
        subprocess.run(["dpkg", "-x", package, folder], check=True)
    return folder / "usr/bin/etcd"


class EtcdCluster(Cluster):
    """The same with discovery by etcd; its data outlives a restart."""

    def __init__(self, program, data):
        self.command = [program, "--data-dir", data, "--listen-client-urls", URL,
                        "--advertise-client-urls", URL, "--listen-peer-urls",
                        f"http://127.0.0.1:{PORT + 1}"]
        self.etcd = None
        self.start_etcd()
        try:
            super().__init__(env={"DYN_DISCOVERY_BACKEND": "etcd", "ETCD_ENDPOINTS": URL})
        except BaseException:
            self.etcd.kill()
            raise

    def start_etcd(self):
        self.etcd = subprocess.Popen(self.command, stdin=subprocess.DEVNULL,
                                     stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until("etcd serves", self.is_healthy)

    def is_healthy(self):
        assert self.etcd.poll() is None, "etcd ended"
        try:
            return b"true" in urllib.request.urlopen(f"{URL}/health", timeout=1).read()
        except OSError:
            return False

    def __exit__(self, *failure):
        super().__exit__(*failure)
        self.etcd.kill()
        self.etcd.wait()


def main():
    data = Path(f"/tmp/trail-dynamo-etcd-{time.time_ns()}")
    try:
        with EtcdCluster(find_etcd(), data) as cluster:
            cluster.add_workers(2)
            finish = six_streams(cluster)
            wait_until("both workers stream", lambda: both_stream(cluster))
            kill(cluster.workers[0])
            whole, moved = count_whole(finish(), [LENGTH] * 6), cluster.migrations()
            print(f"j: a worker dies: {whole} of 6 whole, {moved} moved", flush=True)
            assert whole == 6 and moved > 0

            cluster.workers.pop(0)
            cluster.add_workers(1)
            finish = six_streams(cluster)
            wait_until("both workers stream", lambda: both_stream(cluster))
            kill(cluster.etcd, signal.SIGTERM)
            cluster.etcd.wait()
            time.sleep(3)
            cluster.start_etcd()
            whole = count_whole(finish(), [LENGTH] * 6)
            time.sleep(12)
            later = is_whole(cluster.ask("x", 20), 20)
            alive = [process.poll() is None for process in [cluster.router, *cluster.workers[-2:]]]
            print(f"j: etcd away for 3 s: {whole} of 6 whole; 12 s later served: {later}, "
                  f"processes alive: {sum(alive)} of 3", flush=True)
            assert whole == 6 and later and all(alive)
    finally:
        shutil.rmtree(data, ignore_errors=True)


if __name__ == "__main__":
    main()
