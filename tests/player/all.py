"""Export every small network (QDQ and QOperator form of ONNX, and TFLite) for every shipped kind of device.
Each plan that a driver can run must give the session's bytes. For the other plans, print what the driver
lacks. `python -m tests.player.all DEVICE [PART OF A NAME]` takes minutes on lavapipe, and half an hour on
SwiftShader."""

import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("VKQ_EVERY_DRIVER", "1")  # keeps lavapipe unmodified, because it is a shipped kind
import tests.conftest  # noqa: F401  gives the Vulkan loader both drivers
import vkq
from tests.onnx.networks import KINDS
from tests.player.files import check_bytes, network, tflite
from vkq.device.reported import NAMES
from vkq.errors import VkqError

FORMS = ("qdq_int8", "qoperator_uint8")
MODELS = sorted(path.stem for path in (Path(__file__).parents[1] / "tflite/models").glob("*.tflite"))


def main(which: str, part: str = "") -> int:
    wrong, names = 0, [(kind, form) for kind in KINDS for form in FORMS] + [(x, "tflite") for x in MODELS]
    with vkq.Device(which) as device, tempfile.TemporaryDirectory() as place:
        for name, form in names:
            if part not in f"{name} {form}":
                continue
            try:
                data = tflite(name) if form == "tflite" else network(name, form, Path(place))
                played, lacking = check_bytes(data, device, Path(place), NAMES)
                said = f"the session's bytes by {', '.join(played)}; lacking {lacking}"
            except (AssertionError, VkqError) as error:
                said, wrong = f"{type(error).__name__}: {error}", wrong + 1
            print(f"{device.name[:12]} {name} {form}: {said}", flush=True)
    return wrong


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
