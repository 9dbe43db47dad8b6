"""In place of the kernel's server of a code interpreter: one Python, and lines of JSON for what it prints, computes and raises."""

import contextlib
import http.server
import io
import json

space = {}


class Printed(io.StringIO):
    def __init__(self, send):
        super().__init__()
        self.send = send

    def write(self, text):
        self.send({"type": "stdout", "text": text, "timestamp": 0})
        return len(text)


class Kernel(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()

    def do_POST(self):
        *lines, last = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["code"].split("\n")
        self.send_response(200)
        self.end_headers()
        try:
            with contextlib.redirect_stdout(Printed(self.send)):
                exec("\n".join(lines), space)
                self.send({"type": "result", "text": repr(eval(last, space)), "is_main_result": True})
        except Exception as error:
            self.send({"type": "error", "name": type(error).__name__, "value": str(error), "traceback": ""})

    def send(self, message):
        self.wfile.write(json.dumps(message).encode() + b"\n")


http.server.ThreadingHTTPServer(("127.0.0.1", 49999), Kernel).serve_forever()
