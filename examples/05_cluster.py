"""A local Dask cluster with one process for each device removes the noise of a folder of pictures. One
process is killed.

The pictures are parts of scikit-image's photographs with added noise; the model is from 04_denoise.py.
Although one process is killed in the middle, every result arrives and equals the result of a single
process. Usage: 05_cluster.py [FOLDER of PNG files]"""

import os
import signal
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path

import numpy as np
from distributed import Client, Future, LocalCluster, Worker, WorkerPlugin, as_completed, progress
from PIL import Image
from skimage import data

import vkq.onnx

MODEL = Path(__file__).parent / "models" / "denoise.onnx"
SIZE = 64  # side of the pictures that this example cuts

Result = tuple[str, int, np.ndarray]  # (device name, process id, picture)


class OwnDevice(WorkerPlugin):
    """Set VKQ_DEVICE in each worker, also in a restarted one, to the device of its rank. Sessions without a
    named device use VKQ_DEVICE."""

    def __init__(self, devices: list[int]):
        self.devices = devices

    def setup(self, worker: Worker) -> None:
        os.environ["VKQ_DEVICE"] = str(self.devices[int(worker.name) % len(self.devices)])


def own_devices() -> list[int]:
    """Return the GPUs of this machine, or its CPU drivers if it has no GPU."""
    able = [c for c in vkq.devices() if c.refusal() is None]
    return [c.index for c in able if c.device_type != "cpu"] or [c.index for c in able]


def cut(folder: Path) -> None:
    """Fill the folder with 12 parts of two photographs."""
    for name in ("astronaut", "coffee"):
        photo = getattr(data, name)()
        for i, j in np.ndindex(2, 3):
            part = photo[i * SIZE : (i + 1) * SIZE, j * SIZE : (j + 1) * SIZE]
            Image.fromarray(part).save(folder / f"{name}-{i}-{j}.png")


def read(path: Path) -> np.ndarray:
    """Return a picture with added noise, in the form of the model's input: (1, 3, H, W), float32 from 0 to
    1."""
    pixels = np.asarray(Image.open(path).convert("RGB"), np.float32).transpose(2, 0, 1)[None] / 255
    return pixels + 0.1 * np.random.default_rng(pixels.size).standard_normal(pixels.shape, np.float32)


def denoised(path: Path, session: vkq.onnx.InferenceSession) -> Result:
    """Remove the noise of a picture in a worker; return the device, the process id and the result."""
    return session.device.name, os.getpid(), session.run(None, {"x": read(path)})[0]


def kill_in_the_middle(futures: list[Future], killed: list[int]) -> None:
    """After a third of the work, kill the process that returned the first result."""
    for count, future in enumerate(as_completed(futures), 1):
        if count == 1:
            killed.append(future.result()[1])
        if count == len(futures) // 3:
            os.kill(killed[0], signal.SIGKILL)
            return


def spread(paths: list[Path], session: vkq.onnx.InferenceSession) -> tuple[int, list[Result]]:
    """Return the id of the killed process, and the result of each picture."""
    devices = own_devices()
    count = max(2, len(devices))  # at least two workers, so that one is left after the other is killed
    # Dask spawns the workers, and a "nanny" process restarts a killed worker. Another worker repeats the
    # tasks of the killed worker.
    with (
        LocalCluster(n_workers=count, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        client.register_plugin(OwnDevice(devices))
        # The session is sent once to each worker, which then opens its device.
        there = client.scatter(session, broadcast=True)
        futures = client.map(denoised, paths, session=there, pure=False)
        killed: list[int] = []
        killer = threading.Thread(target=kill_in_the_middle, args=(futures, killed))
        killer.start()
        progress(futures, notebook=False)
        killer.join()
        results = client.gather(futures)
        return killed[0], results


def main() -> None:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(sys.argv[1] if len(sys.argv) > 1 else made)
        if len(sys.argv) == 1:
            cut(folder)
        paths = sorted(folder.glob("*.png"))
        if len(paths) < 3:
            sys.exit(f"{folder} has {len(paths)} PNG files; give a folder with three or more")
        session = vkq.onnx.InferenceSession(MODEL)
        killed, results = spread(paths, session)
        alone = [denoised(path, session)[2] for path in paths]
    counts = Counter((pid, name) for name, pid, _ in results)
    for (pid, name), count in counts.items():
        print(f"process {pid} on {name}: {count} pictures{', then killed' if pid == killed else ''}")
    equal = sum(np.array_equal(one, y) for one, (_, _, y) in zip(alone, results, strict=True))
    print(
        f"process {killed} was killed; {equal} of {len(paths)} pictures are there and equal to one process'"
    )
    if equal != len(paths):
        sys.exit("results differ from one process'")


if __name__ == "__main__":
    main()
