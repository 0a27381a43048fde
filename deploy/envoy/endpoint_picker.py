"""An endpoint picker of the Gateway API inference extension (proposal 004), as small as it can be.

    endpoint_picker.py SERVER,SERVER,...    SERVER is IP:PORT; prints its own port, then its picks

Envoy sends it each request (ext_proc, FULL_DUPLEX_STREAMED). It answers with all servers, the one
with the least predicted work first, which Envoy tries in this order until one has answered.
"""

import concurrent.futures
import http.client
import sys
import threading
import time
import urllib.request

import grpc
from envoy.config.core.v3.base_pb2 import HeaderValue, HeaderValueOption
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
from envoy.service.ext_proc.v3 import external_processor_pb2_grpc as ext_proc_grpc
from envoy.type.v3.http_status_pb2 import HttpStatus

DESTINATION = "x-gateway-destination-endpoint"
METRIC = "trail:predicted_tokens_outstanding "
SCRAPE_SECONDS = 0.05
# A server that does not answer keeps its place so long: whether it is gone is for Envoy to find.
STALE_SECONDS = 5.0
CHUNK_BYTES = 32 << 10
# Longest body that is held: that of the servers.
MAX_BODY_BYTES = 4 << 20


def predicted_tokens(metrics):
    """The value of METRIC. Raises ValueError without it."""
    found = [line.removeprefix(METRIC) for line in metrics.splitlines() if line.startswith(METRIC)]
    return float("".join(found))


class Loads:
    """Predicted work by server, read every SCRAPE_SECONDS."""

    def __init__(self, servers):
        self.tokens = {}
        self.seen = {}
        for server in servers:
            threading.Thread(target=self.watch, args=[server], daemon=True).start()

    def watch(self, server):
        while True:
            try:
                url = f"http://{server}/metrics"
                with urllib.request.urlopen(url, timeout=1) as response:
                    self.tokens[server] = predicted_tokens(response.read().decode())
                self.seen[server] = time.monotonic()
            except (OSError, http.client.HTTPException, ValueError):
                pass  # Gone, cut short, or without the metric: the next scrape may have it.
            time.sleep(SCRAPE_SECONDS)

    def in_order(self):
        """The servers that were seen lately, by their predicted work."""
        oldest = time.monotonic() - STALE_SECONDS
        recent = [server for server, at in list(self.seen.items()) if at > oldest]
        return sorted(recent, key=lambda server: (self.tokens[server], server))


TOO_LONG = ext_proc.ProcessingResponse(immediate_response=ext_proc.ImmediateResponse(
    status=HttpStatus(code=413), body=b"the body is too long"))


class Picker(ext_proc_grpc.ExternalProcessorServicer):
    def __init__(self, loads):
        self.loads = loads

    def Process(self, messages, context):
        """One HTTP request: its head, then the chunks of its body. The answer waits for the end of
        the body, as that of pickers that look into it: Envoy retries no request whose body it is
        still sending."""
        body = bytearray()
        for message in messages:
            if message.HasField("request_body"):
                body += message.request_body.body
            if len(body) > MAX_BODY_BYTES:
                yield TOO_LONG
                return
            trailers = message.HasField("request_trailers")
            if message.request_headers.end_of_stream:
                yield self.destination()
            elif message.request_body.end_of_stream or trailers:
                yield self.destination()
                yield from forwarded(body, not trailers)
            if trailers:
                yield ext_proc.ProcessingResponse(request_trailers=ext_proc.TrailersResponse())

    def destination(self):
        servers = ",".join(self.loads.in_order())
        print(servers, flush=True)
        header = HeaderValue(key=DESTINATION, raw_value=servers.encode())
        answer = ext_proc.ProcessingResponse()
        common = answer.request_headers.response
        common.header_mutation.set_headers.append(HeaderValueOption(
            header=header, append_action=HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD,
        ))
        answer.dynamic_metadata.update({"envoy.lb": {DESTINATION: servers}})
        return answer


def forwarded(body, ends):
    """The body in pieces that Envoy accepts; the last one `ends` the request."""
    pieces = [body[at:at + CHUNK_BYTES] for at in range(0, len(body), CHUNK_BYTES)] or [b""]
    for i, piece in enumerate(pieces):
        answer = ext_proc.ProcessingResponse()
        streamed = answer.request_body.response.body_mutation.streamed_response
        streamed.body = bytes(piece)
        streamed.end_of_stream = ends and i + 1 == len(pieces)
        yield answer


def main(servers):
    picker = grpc.server(concurrent.futures.ThreadPoolExecutor(max_workers=32))
    ext_proc_grpc.add_ExternalProcessorServicer_to_server(Picker(Loads(servers)), picker)
    print(picker.add_insecure_port("127.0.0.1:0"), flush=True)
    picker.start()
    picker.wait_for_termination()


if __name__ == "__main__":
    main(sys.argv[1].split(","))
