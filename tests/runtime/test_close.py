"""Closing a device while objects that use it are alive."""

import subprocess
import sys

CODE = """
import numpy as np, vkq
for _ in range(4):
    with vkq.Device() as device:
        recordings = []
        for path in ("dot_s8s8", "dot_u8s8", "dot_u8u8", "portable"):
            q = vkq.QParams(1.0)
            layer = vkq.Linear(np.ones((4, 4), np.int8), 1.0, x_qparams=q, path=path, device=device)
            x = vkq.Tensor.from_numpy(np.ones((4, 4), np.int8), device)
            with device.record(timestamps=1) as recording:
                layer(x)
            recording.run()
            recordings.append(recording)
        del layer, x
"""


def test_a_recording_that_holds_the_last_use_of_a_program_survives_the_device() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
