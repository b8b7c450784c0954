"""Tests of signals between any two bytecodes: the device stays usable, and no result is wrong."""

import os

import vkq
from tests.runtime.test_process import ends, python

COUNT = int(os.environ.get("VKQ_INTERRUPTS", "150"))

# Interrupts come at random times while layers run, tensors are written and recordings are replayed. After
# each interrupt, results have the bytes of an uninterrupted run, no unknown work is in flight, and no lock
# is held.
RANDOM = """
import random
rng = random.Random(7)
w = np.arange(-50, 50, dtype=np.int8).reshape(5, 20)
xs = [np.full((3, 20), i, np.int8) for i in (1, 2)]
mine = [device, vkq.Device(sys.argv[1], staging=True)]
layers = [vkq.Linear(w, 0.5, x_qparams=q, device=d) for d in mine]
want = [layers[0](x) for x in xs]
tensors = [vkq.Tensor.from_numpy(xs[0], d) for d in mine]
recordings = []
for l, t in zip(layers, tensors):
    assert (l(t).numpy() == want[0]).all()
    with l.device.record() as r:
        y = l(t)
    recordings.append((r, y))
class Signal(Exception): pass
armed = False
def arrives(*_):
    global armed
    if armed:
        armed = False
        raise Signal
signal.signal(signal.SIGALRM, arrives)
seen = 0
while seen < int(sys.argv[2]):
    at = rng.randrange(2)
    try:
        armed = True
        signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-5, 1.5e-3))
        for _ in range(50):
            for l, t, (r, y) in zip(layers, tensors, recordings):
                l(xs[at])
                t.write(xs[at])
                with l.device.operation() as chain:
                    chain.fill(y.buffer, 3)
                r.run()
                vkq.quantize(vkq.dequantize(vkq.quantize(np.ones(9, np.float32), q, device=l.device), q), q)
    except Signal:
        seen += 1
    armed = False
    signal.setitimer(signal.ITIMER_REAL, 0)
    for l, t, (r, y) in zip(layers, tensors, recordings):
        t.write(xs[1 - at])
        assert (l(xs[at]) == want[at]).all()
        if r._native.running:
            r.wait()
        r.run()
        assert (y.numpy() == want[1 - at]).all()
        l.device.synchronize()
        assert l.device.queue.in_flight() == []
        done = []
        thread = threading.Thread(target=lambda: done.append(l(xs[at])))  # another thread finds no lock held
        thread.start()
        thread.join(20)
        assert done and (done[0] == want[at]).all()
print("interrupts", seen)
"""


def test_random_interrupts_leave_the_device_usable(device: vkq.Device) -> None:
    ends(python(RANDOM, device, str(COUNT)), f"interrupts {COUNT}\n", seconds=max(90, COUNT))
