"""Pages of an allowed origin and of two others in headless Chromium, on a server that it starts.

    python3 tests/clients/browser_check.py target/release/trail-rt     # needs `chromium`

Pages of `--cors-origin` list models, stream a chat with a key and read an error; pages of other
origins, one on the server's own host, read nothing. Prints a line a check; exit code 1 if
one fails. Standard library only.
"""

import http.server
import json
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import threading

PAGE = """<!doctype html><script>
const url = '%s';
const headers = { 'content-type': 'application/json', authorization: 'Bearer sk-page' };
const chat = { messages: [{ role: 'user', content: 'Count to ten.' }], max_tokens: 24,
               ignore_eos: true, stream: true };
const checks = {
  models: async () => (await (await fetch(url + '/v1/models', { headers })).json()).data.length,
  simple: async () => (await (await fetch(url + '/version')).json()).version,
  stream: async () => {
    const body = JSON.stringify(chat);
    const answer = await fetch(url + '/v1/chat/completions', { method: 'POST', headers, body });
    const reader = answer.body.getReader();
    let reads = 0, text = '';
    for (let part; !(part = await reader.read()).done; reads += 1)
      text += new TextDecoder().decode(part.value);
    return { reads, ended: text.endsWith('data: [DONE]\\n\\n') };
  },
  error: async () => (await fetch(url + '/v1/chat/completions',
    { method: 'POST', headers, body: '{}' })).status,
};
(async () => {
  const found = {};
  for (const [name, check] of Object.entries(checks))
    found[name] = await check().catch((error) => `refused: ${error.name}`);
  await fetch('/found', { method: 'POST', body: JSON.stringify(found) });
})();
</script>"""


class Pages(http.server.BaseHTTPRequestHandler):
    """Serves the page, and takes what it found."""

    def do_GET(self):
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write((PAGE % self.server.target).encode())

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        self.send_response(204)
        self.end_headers()
        self.server.found.put(json.loads(body))

    def log_message(self, *_):
        pass


def visit(origin: str, pages: http.server.ThreadingHTTPServer) -> dict:
    """Results of a page of `origin`."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        # The sandbox does not start for root, as in a container.
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = subprocess.Popen(
            ["chromium", "--headless", "--disable-gpu", f"--user-data-dir={profile}",
             "--host-resolver-rules=MAP page.test 127.0.0.1", *sandbox, origin],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            return pages.found.get(timeout=90)
        finally:
            browser.kill()
            browser.wait()


def holds(origin: str, is_allowed: bool, found: dict) -> bool:
    if not is_allowed:
        return all(value == "refused: TypeError" for value in found.values())
    stream = found["stream"]
    streams = isinstance(stream, dict) and stream["ended"] and stream["reads"] > 1
    return streams and found["models"] == 1 and found["error"] == 400


def main() -> int:
    if not shutil.which("chromium"):
        print("skipped: the browser, as chromium is not installed")
        return 0
    pages = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    pages.found = queue.Queue()
    threading.Thread(target=pages.serve_forever, daemon=True).start()
    port = pages.server_port
    # One origin by its name is not one by its address.
    origins = {f"http://page.test:{port}": True, f"http://localhost:{port}": False,
               f"http://127.0.0.1:{port}": False}
    allowed = next(iter(origins))
    server = subprocess.Popen(
        [sys.argv[1], "serve", "--port", "0", "--api-key", "sk-page", "--cors-origin", allowed],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    failed = 0
    try:
        pages.target = next(
            found[0] for line in server.stdout if (found := re.search(r"http://127[^ ,\s]*", line)))
        threading.Thread(target=server.stdout.read, daemon=True).start()
        for origin, is_allowed in origins.items():
            found = visit(origin, pages)
            is_right = holds(origin, is_allowed, found)
            failed += not is_right
            kind = "allowed" if is_allowed else "not allowed"
            print(f"{'ok  ' if is_right else 'FAIL'} browser: {kind}: {json.dumps(found)}")
    finally:
        server.terminate()
        server.wait(40)
    version = subprocess.run(["chromium", "--version"], capture_output=True, text=True)
    print(version.stdout.strip())
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
