"""OpenVINO GenAI behind a small OpenAI front: chat completions as streams, for proxy.py.

    python3 openvino_front.py MODEL.gguf --port 8080 --max-running 4 --threads 2

Requests beyond --max-running wait here, first come, first served: GenAI's max_num_seqs bounds a
step, and requests take turns in it. A client that leaves cancels its request once it runs. Needs
openvino-genai, whose reader of GGUF files has no Q5_0 (2026.4.1). Prints its address when the model
is loaded.
"""

import argparse
import http.server
import json
import queue
import threading

import openvino_genai


class Engine:
    """GenAI's continuous batching, stepped by one thread."""

    def __init__(self, args):
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = 1
        scheduler.max_num_seqs = args.max_running
        options = {"INFERENCE_NUM_THREADS": args.threads}
        self.pipe = openvino_genai.ContinuousBatchingPipeline(
            args.model, scheduler, "CPU", options
        )
        self.tokenizer = self.pipe.get_tokenizer()
        self.changed = threading.Condition()
        self.max_running = args.max_running
        self.open = []
        self.asked = self.ended = 0
        threading.Thread(target=self.run, daemon=True).start()

    def submit(self, body):
        """Returns the handle, the number of tokens of the prompt and the queue of the answer's."""
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = body.get("max_tokens", 256)
        config.temperature = body.get("temperature", 1.0)
        config.do_sample = config.temperature > 0
        config.rng_seed = body.get("seed", 0)
        config.apply_chat_template = False
        text = self.tokenizer.apply_chat_template(body["messages"], add_generation_prompt=True)
        ids = self.tokenizer.encode(text, add_special_tokens=False).input_ids
        tokens = queue.Queue()
        with self.changed:
            number = self.asked
            self.asked += 1
            self.changed.wait_for(lambda: number < self.ended + self.max_running)
            try:
                handle = self.pipe.add_request(number, ids, config)
            except Exception:
                self.ended += 1
                self.changed.notify_all()
                raise
            self.open.append((handle, tokens))
            self.changed.notify_all()
        return handle, ids.shape[1], tokens

    def run(self):
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.open)
                requests = list(self.open)
            self.pipe.step()
            ended = []
            for handle, tokens in requests:
                while handle.can_read():
                    for output in handle.read().values():
                        reason = output.finish_reason.name
                        tokens.put((output.generated_ids, None if reason == "NONE" else reason))
                if handle.get_status() != openvino_genai.GenerationStatus.RUNNING:
                    tokens.put(None)
                    ended.append(handle)
            with self.changed:
                self.open = [one for one in self.open if one[0] not in ended]
                self.ended += len(ended)
                self.changed.notify_all()


class Front(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    engine = None

    def do_GET(self):
        self.answer({"object": "list", "data": [{"id": "openvino", "object": "model"}]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path != "/v1/chat/completions" or not body.get("stream"):
            return self.answer({"error": {"message": "chat completions as streams alone"}}, 400)
        handle, prompt_tokens, tokens = self.engine.submit(body)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            self.stream(prompt_tokens, tokens)
        except OSError:
            handle.cancel()
            self.close_connection = True

    def stream(self, prompt_tokens, tokens):
        ids, sent = [], ""
        while (step := tokens.get()) is not None:
            ids += step[0]
            text = self.engine.tokenizer.decode(ids)
            # The rest of a character comes with the next token.
            new = "" if text.endswith("\ufffd") and not step[1] else text[len(sent) :]
            sent += new
            reason = step[1] and step[1].lower()
            self.event({"choices": [
                {"index": 0, "delta": {"content": new}, "finish_reason": reason}
            ]})
        self.event({"choices": [], "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": len(ids),
            "total_tokens": prompt_tokens + len(ids),
        }})
        self.chunk(b"data: [DONE]\n\n")
        self.chunk(b"")

    def event(self, value):
        value = {"id": "chatcmpl", "object": "chat.completion.chunk", "model": "openvino", **value}
        self.chunk(b"data: " + json.dumps(value).encode() + b"\n\n")

    def chunk(self, data):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def answer(self, value, status=200):
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


class Listener(http.server.ThreadingHTTPServer):
    request_queue_size = 1024
    daemon_threads = True


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--max-running", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    Front.engine = Engine(args)
    with Listener(("127.0.0.1", args.port), Front) as listener:
        print(f"http://127.0.0.1:{args.port}", flush=True)
        listener.serve_forever()


if __name__ == "__main__":
    main()
