#!/usr/bin/env python3
"""A registry of crates for tests: the packages in FOLDER, which `cargo publish --dry-run` wrote,
and of all other crates those of crates.io, by redirects. Prints its address for cargo.

    .ci/registry.py target/package/tmp-registry
"""

import http.server
import json
import pathlib
import sys

INDEX = "https://index.crates.io"
FILES = "https://static.crates.io/crates"


class Registry(http.server.BaseHTTPRequestHandler):
    folder = pathlib.Path()

    def do_GET(self):
        path = self.path.lstrip("/")
        if path == "config.json":
            host, port = self.server.server_address
            template = "{crate}/{crate}-{version}.crate"
            self.send(json.dumps({"dl": f"http://{host}:{port}/crates/{template}"}).encode())
        elif path.startswith("crates/"):
            own = self.folder / path.rsplit("/", 1)[1]
            self.send_or_redirect(own, FILES + "/" + path.removeprefix("crates/"))
        else:
            self.send_or_redirect(self.folder / "index" / path, f"{INDEX}/{path}")

    def send_or_redirect(self, own, elsewhere):
        if own.is_file():
            return self.send(own.read_bytes())
        self.send_response(302)
        self.send_header("Location", elsewhere)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def send(self, body):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def main():
    Registry.folder = pathlib.Path(sys.argv[1]).resolve()
    Registry.protocol_version = "HTTP/1.1"
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Registry) as server:
        host, port = server.server_address
        print(f"sparse+http://{host}:{port}/", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
