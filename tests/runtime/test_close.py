"""Closing a device while objects that use it are alive."""

import subprocess
import sys

CODE = """
import numpy as np, vkq
for _ in range(3):
    with vkq.Device() as device:
        layer = vkq.Linear(np.ones((4, 4), np.int8), 1.0, x_qparams=vkq.QParams(1.0), device=device)
        x = vkq.Tensor.from_numpy(np.ones((4, 4), np.int8), device)
        with device.record() as recording:
            layer(x)
        recording.run()
"""


def test_a_recording_that_holds_the_last_use_of_a_program_survives_the_device() -> None:
    ended = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
