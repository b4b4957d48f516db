"""A driver on a thread of its own, inside a worker's process.

The thread is a daemon: a job that ends without leaving ends at once, and whoever launches next settles.
"""

from __future__ import annotations

import logging
import threading

from tallymark.driver import Driver
from tallymark.errors import TallymarkError

log = logging.getLogger("tallymark")
STOP_WITHIN_S = 30.0


class Host:
    """Runs `driver` until stopped. The driver must not be used by anyone else meanwhile."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="tallymark-driver")
        self._thread.start()

    def _run(self) -> None:
        try:
            self._driver.run(self._stop)
        except TallymarkError:
            log.exception("the hosted tallymark driver has stopped; a waiting rank or `tallymark drive` takes over")

    def nudge(self) -> None:
        """A marker was published: look now."""
        self._driver.nudge()

    def stop(self) -> None:
        """End the thread after the poll under way. Calling it again does nothing."""
        self._stop.set()
        self._driver.nudge()
        self._thread.join(STOP_WITHIN_S)
