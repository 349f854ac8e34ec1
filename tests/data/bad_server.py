"""An HTTP server with faults."""

import http.server
import re
import socket

CONTENT = bytes(range(256)) * 1021


class Server(http.server.ThreadingHTTPServer):
    """Serves CONTENT; each of the first requests has one of ``faults``, the others have none."""

    daemon_threads = True
    content = CONTENT
    faults: tuple = ()
    ranges = True
    length = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests = []
        self.url = f"http://127.0.0.1:{self.server_port}/data.bin"


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        server = self.server
        asked = self.headers.get("Range")
        server.requests.append(asked)
        fault, *rest = server.faults or (None,)
        server.faults = tuple(rest)
        if isinstance(fault, int):
            self.send_error(fault)
            return
        start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1]) if asked and server.ranges else 0
        if start >= len(server.content) > 0 and start:
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(server.content)}")
            self.end_headers()
            return
        if fault == "chunks":
            self.send_chunks(server.content[start:], start)
            return
        if fault == "other part":
            start //= 2
        body = server.content[start:]
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(server.content) - 1}/{len(server.content)}")
        if server.length:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if fault == "cut":
            self.wfile.write(body[: len(body) // 2])
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
        else:
            self.wfile.write(body)

    def send_chunks(self, body, start):
        """Sends half of the announced chunks and closes the connection."""
        self.protocol_version = "HTTP/1.1"
        self.send_response(206 if start else 200)
        if start:
            self.send_header(
                "Content-Range", f"bytes {start}-{len(self.server.content) - 1}/{len(self.server.content)}"
            )
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        half = body[: len(body) // 2]
        self.wfile.write(b"%x\r\n" % len(half) + half + b"\r\n")
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_RDWR)
        self.close_connection = True
