"""One event loop for the whole process, on which threads wait for coroutines."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class BackgroundLoop:
    """
    Runs coroutines for callers that are ordinary threads.

    Only an event loop can end a request after a total time: a blocking client bounds each read,
    and a server that sends one byte a second passes every such bound. The thread starts with the
    first coroutine, and again after a fork.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._process = 0

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Wait for *coroutine* and return its result or raise its exception."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._running())
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run *coroutine* without waiting, if the loop still runs; else drop it."""
        loop = self._loop
        if loop is None or self._process != os.getpid() or not loop.is_running():
            coroutine.close()
        else:
            asyncio.run_coroutine_threadsafe(coroutine, loop)

    def stop(self) -> None:
        """End the thread and close the loop."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is not None and thread is not None and self._process == os.getpid():
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._process != os.getpid():
                self._loop = asyncio.new_event_loop()
                self._process = os.getpid()
                self._thread = threading.Thread(
                    target=self._loop.run_forever, name="kshift-requests", daemon=True
                )
                self._thread.start()
            return self._loop


BACKGROUND = BackgroundLoop()
atexit.register(BACKGROUND.stop)
