"""A small real server that speaks chat completions, and batches of them; and replies to give it."""

import contextlib
import json
import threading
from email.parser import BytesParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Server(ThreadingHTTPServer):
    """Answers chat completions from a list of replies, one a request; the last one again and again.

    A batch is answered in reverse order, and is in progress for the first `looks` looks at it.
    """

    def __init__(self, replies):
        super().__init__(("127.0.0.1", 0), Handler)
        self.replies = list(replies)
        self.requests = []
        self.files = {}
        self.batches = {}
        """None where the server knows no batches."""
        self.looks = 2
        self.batch_errors = 0
        """So many lines of the next batch fail."""

    @property
    def base_url(self):
        return f"http://127.0.0.1:{self.server_port}/v1"

    def completion(self, asked):
        self.requests.append(asked["messages"][-1]["content"])
        text = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        return {"id": "1", "object": "chat.completion", "created": 0, "model": "small", "choices": [choice]}

    def keep_file(self, data):
        name = f"file-{len(self.files)}"
        self.files[name] = data
        return {"id": name, "object": "file", "bytes": len(data), "purpose": "batch"}

    def keep_batch(self, asked):
        name = f"batch_{len(self.batches)}"
        self.batches[name] = asked | {"id": name, "object": "batch", "status": "validating", "looks": 0}
        return self.batches[name]

    def look_at(self, name):
        batch = self.batches[name]
        batch["looks"] += 1
        batch["status"] = "in_progress"
        if batch["looks"] > self.looks and "output_file_id" not in batch:
            self.answer(batch)
        if "output_file_id" in batch:
            batch["status"] = "completed"
        return batch

    def answer(self, batch):
        lines = [json.loads(line) for line in self.files[batch["input_file_id"]].splitlines()]
        failing, self.batch_errors = lines[: self.batch_errors], 0
        answered = lines[len(failing) :]
        batch["request_counts"] = {"total": len(lines), "completed": len(answered), "failed": len(failing)}
        batch["output_file_id"] = self.keep_lines(
            {"custom_id": line["custom_id"], "response": {"status_code": 200, "body": self.completion(line["body"])}}
            for line in reversed(answered)
        )
        if failing:
            why = {"code": "expired", "message": "there was no time"}
            batch["error_file_id"] = self.keep_lines({"custom_id": line["custom_id"], "error": why} for line in failing)

    def keep_lines(self, lines):
        return self.keep_file("".join(json.dumps(line) + "\n" for line in lines).encode())["id"]


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/v1/files":
            kind = f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode()
            parts = BytesParser().parsebytes(kind + body).get_payload()
            self.send(
                self.server.keep_file(next(part.get_payload(decode=True) for part in parts if part.get_filename()))
            )
        elif self.path == "/v1/batches":
            self.send(self.server.keep_batch(json.loads(body)))
        else:
            self.send(self.server.completion(json.loads(body)))

    def do_GET(self):
        if self.server.batches is None:
            self.send_error(404)
            return
        kind, _, name = self.path.removeprefix("/v1/").partition("?")[0].partition("/")
        if kind == "files":
            self.send_bytes(self.server.files[name.removesuffix("/content")])
        elif name:
            self.send(self.server.look_at(name))
        else:
            self.send({"object": "list", "data": list(self.server.batches.values()), "has_more": False})

    def send(self, answer):
        self.send_bytes(json.dumps(answer).encode(), "application/json")

    def send_bytes(self, body, kind="application/octet-stream"):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words):
        pass


@contextlib.contextmanager
def http_stub(*replies):
    server = Server(replies)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def fake_reply(source):
    return f"Here is the kernel.\n\n```python\n{source}\n```\n"
