"""A small HTTP server recognizes digits, and clients measure it. The server is the standard library's; all
its threads share one session.

    06_serve.py --clients 64 --seconds 60  # measure: errors, requests per second, percentiles
    06_serve.py --serve --port 8000        # serve: POST an .npy array (1, 8, 8) of numbers from 0 to 1
    curl --data-binary @image.npy http://127.0.0.1:8000/digits

A request that waits too long for the device gets status 503; a request with a wrong array gets 400."""

import argparse
import http.client
import io
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np

import vkq.onnx

MODELS = Path(__file__).parent / "models"
MOST_BYTES = 1 << 20  # maximum bytes of a request
TIMEOUT_S = 10.0  # maximum seconds of a run


class Digits(BaseHTTPRequestHandler):
    """The handler of POST /digits. All threads use the server's `session`."""

    protocol_version = "HTTP/1.1"  # HTTP/1.1 keeps a client's connection open
    wbufsize, disable_nagle_algorithm = -1, True  # send an answer as one packet, at once
    server: "Server"

    def do_POST(self) -> None:
        try:
            length = int(self.headers.get("Content-Length", 0))
            if self.path != "/digits" or not 0 < length <= MOST_BYTES:
                return self._answer(
                    404, {"error": f"POST an .npy array of at most {MOST_BYTES} bytes to /digits"}
                )
            image = np.load(io.BytesIO(self.rfile.read(length)), allow_pickle=False)
            (scores,) = self.server.session.run(None, {"x": image[None]}, timeout=TIMEOUT_S)
        except vkq.TimedOutError as error:
            return self._answer(503, {"error": str(error)})
        except (vkq.VkqError, ValueError, EOFError) as error:
            return self._answer(400, {"error": str(error)})
        return self._answer(200, {"digit": int(scores[0].argmax()), "scores": scores[0].tolist()})

    def _answer(self, status: int, told: dict[str, Any]) -> None:
        body = json.dumps(told).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Do not log requests."""


class Server(ThreadingHTTPServer):
    daemon_threads, request_queue_size = True, 128

    def __init__(self, port: int, session: vkq.onnx.InferenceSession):
        super().__init__(("127.0.0.1", port), Digits)
        self.session = session


def client(
    port: int, images: np.ndarray, wanted: np.ndarray, end: float, taken: list[float], wrong: list[str]
) -> None:
    """Send requests until the time *end*; append the seconds of each request to *taken* and each wrong
    answer to *wrong*."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    at = 0
    while time.monotonic() < end or not at:
        body = io.BytesIO()
        np.save(body, images[at % len(images)])
        begin = time.perf_counter()
        connection.request("POST", "/digits", body.getvalue())
        response = connection.getresponse()
        told = json.loads(response.read())
        taken.append(time.perf_counter() - begin)
        if response.status != 200 or told["digit"] != wanted[at % len(images)]:
            wrong.append(f"{response.status} {told}")
        at += 1
    connection.close()


def measure(port: int, images: np.ndarray, wanted: np.ndarray, clients: int, seconds: float) -> int:
    """Print the measurements of all clients; return the number of wrong answers."""
    taken: list[float] = []  # all clients append to these lists; append is atomic
    wrong: list[str] = []
    begin = time.monotonic()
    threads = [
        threading.Thread(target=client, args=(port, images, wanted, begin + seconds, taken, wrong))
        for _ in range(clients)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rate = len(taken) / (time.monotonic() - begin)
    parts = ", ".join(f"p{p} {1e3 * np.percentile(taken, p):.1f}" for p in (50, 90, 99, 100))
    print(f"{clients} clients, {len(taken)} requests, {len(wrong)} errors, {rate:.0f} a second; ms: {parts}")
    print(*wrong[:3], sep="\n", end="\n" if wrong else "")
    return len(wrong)


def main() -> int:
    kind = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=kind)
    parser.add_argument("--serve", action="store_true", help="serve until Ctrl-C, and measure nothing")
    parser.add_argument("--port", type=int, default=0, help="default: a free one")
    parser.add_argument("--device", help="an index or part of a name (default: the best)")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=1.0, help="to measure")
    options = parser.parse_args()
    with np.load(MODELS / "digits.npz") as file:
        images = file["images"][:, None].astype(np.float32) / 16
    with vkq.onnx.InferenceSession(MODELS / "digits.onnx", options.device) as session:
        # the reference scores; this also prepares the session
        scores = [session.run(None, {"x": image[None]})[0] for image in images]
        server = Server(options.port, session)
        print(f"{session!r} at http://127.0.0.1:{server.server_port}/digits", flush=True)
        if options.serve:
            server.serve_forever()
        threading.Thread(target=server.serve_forever, daemon=True).start()
        wanted = np.array([int(one.argmax()) for one in scores])
        wrong = measure(server.server_port, images, wanted, options.clients, options.seconds)
        server.shutdown()
        server.server_close()
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
