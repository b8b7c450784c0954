"""The pipelines of a device. Each is compiled once. `Programs.together` compiles several in parallel."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any

from ..device.capabilities import Capabilities
from ..errors import DeviceError
from ..log import LOG
from ..shader.compile import compiled, spirv
from ..shader.spec import Value, Variant
from ..turns import FORKED, Turns, begun
from . import pipeline_cache
from .caches import WeakLruCache
from .program import LazyPipeline, Program, code, require

# Number of latest requested pipelines that are kept even if nothing uses them, as many as ten networks
# have. The driver's cache helps to compile a destroyed pipeline again. The limit bounds memory: llvmpipe
# (LLVM 15) takes 2 to 4 MB for a pipeline until the device is closed.
MOST_UNUSED = 512
MOST_THREADS = 16  # maximum number of compiling threads; a network has 20 to 60 pipelines

Progress = Callable[[int, int], None]


class ParallelCompilation:
    """A context manager whose threads compile pipelines: a driver compiles each on one core, without the
    GIL. The end of the block waits for all compilations. It raises the first failure, unless the block
    raised an exception."""

    def __init__(self, progress: Progress | None = None):
        self._pool = ThreadPoolExecutor(min(MOST_THREADS, os.cpu_count() or 1), "vkq-pipelines")
        self._futures: list[Future[Any]] = []
        self._progress, self._pid = progress, os.getpid()

    def submit(self, make: Callable[[], Any]) -> Future[Any]:
        """Start one compilation and return its future."""
        future = begun(self._pool, make)
        self._futures.append(future)
        return future

    @property
    def count(self) -> int:
        """The number of compilations started."""
        return len(self._futures)

    def __enter__(self) -> ParallelCompilation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                for done, future in enumerate(self._futures, 1):
                    # If *progress* forked the process, this child has no worker threads.
                    if self._pid != os.getpid():
                        raise DeviceError(FORKED)
                    future.result()
                    if self._progress:
                        self._progress(done, len(self._futures))
        finally:
            self._pool.shutdown()


class Programs:
    """The pipelines of a device, and the driver's pipeline cache, which is stored for later processes.

    A plan or a recording keeps its pipelines. The latest `MOST_UNUSED` requested pipelines are kept in any
    case. An older pipeline is destroyed with the last plan or recording that uses it."""

    def __init__(self, context: Any, capabilities: Capabilities):
        self._context, self._capabilities = context, capabilities
        self._made: WeakLruCache[Program] = WeakLruCache(MOST_UNUSED)
        self._any = False  # True once a pipeline was made
        self._turns: dict[tuple[Any, ...], Turns] = {}
        self._lock = Turns("the list of pipelines", again=True)
        self._local = threading.local()
        self._cached_bytes = pipeline_cache.load(context, capabilities)

    def get(self, variant: Variant, values: dict[str, Value], subgroup_size: int) -> Program:
        """Return the pipeline of a variant with these values of its specialization constants, cached if
        possible. In a block of `together`, a thread compiles it; else it is compiled when it is first
        recorded. Raises PathError if the device cannot run the variant."""
        key = (variant, tuple(values.items()), subgroup_size)
        found, block = self._made.get(key), self._block
        if found is not None and block and isinstance(found.pipeline, LazyPipeline):
            found.pipeline.begin(block.submit)
        if found is None:
            with self._lock:
                turn = self._turns.setdefault(key, Turns(variant.name))
            with turn:  # threads wait only for the same pipeline
                found = self._made.get(key)
                if found is None:
                    require(variant, values, self._capabilities)
                    found = self._made.put(key, self._make(variant, values, subgroup_size))
                    found.if_not_made(lambda: self._made.pop(key))  # the next request compiles it again
                    self._any = True
                self._turns.pop(key, None)  # waiting threads find the program in _made
        return found

    @property
    def count(self) -> int:
        """The number of pipelines that exist: the latest `MOST_UNUSED`, and older ones in use."""
        return len(self._made)

    @contextlib.contextmanager
    def together(self, progress: Progress | None = None) -> Iterator[None]:
        """Context manager: compile the pipelines that this thread requests in the block in parallel, while
        the thread continues. The end of the block waits for all of them, and raises the first failure.
        *progress* is called after each pipeline with the number of finished pipelines and the total."""
        began = time.monotonic()
        with ParallelCompilation(progress) as block:
            previous, self._local.block = self._block, block
            try:
                yield
            finally:
                self._local.block = previous
        if block.count:
            LOG.info("%d pipelines compiled in %.3f s", block.count, time.monotonic() - began)

    @property
    def _block(self) -> ParallelCompilation | None:
        """This thread's innermost block of `together`, or None."""
        return getattr(self._local, "block", None)

    def save(self) -> None:
        """Store the driver's pipeline cache if any pipeline was made."""
        if self._any:
            pipeline_cache.save(self._context, self._capabilities, self._cached_bytes)

    def clear(self) -> None:
        """Drop all pipelines. `save` then stores nothing until another pipeline is made."""
        self._made.clear()
        self._any = False

    def _make(self, variant: Variant, values: dict[str, Value], subgroup_size: int) -> Program:
        # Read the SPIR-V file in this thread: worker threads would compete with it for the GIL.
        ready = compiled(variant)

        def make() -> Any:
            began = time.monotonic()
            binary = spirv(variant) if ready is None else ready
            module, constants = code(variant, binary, values, self._capabilities)
            made = self._context.program(
                variant.name, module, len(variant.bindings),
                4 * len(variant.push_constants), constants, subgroup_size, variant.texels,
            )  # fmt: skip
            LOG.debug("pipeline %s compiled in %.3f s", variant.name, time.monotonic() - began)
            return made

        block = self._block
        pipeline = block.submit(make) if block else LazyPipeline(variant.name, make)
        return Program(variant, values, pipeline, subgroup_size=subgroup_size)
