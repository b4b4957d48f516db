"""A driver on a thread of its own, inside a worker's process.

The thread is a daemon: a job that ends without leaving ends at once, and whoever launches next settles.
"""

from __future__ import annotations

import logging
import threading

from tallymark.driver import Driver
from tallymark.errors import StoreError, TallymarkError

log = logging.getLogger("tallymark")
STOP_WITHIN_S = 30.0
RETRY_FIRST_S, RETRY_LONGEST_S = 1.0, 60.0


class Host:
    """Runs `driver` until stopped. The driver must not be used by anyone else meanwhile."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="tallymark-driver")
        self._thread.start()

    def _run(self) -> None:
        pause = RETRY_FIRST_S
        while not self._stop.is_set():
            try:
                self._driver.run(self._stop)
                return
            except StoreError as problem:  # refused, perhaps while credentials are renewed
                log.warning("the hosted tallymark driver is refused, and tries again in %g s: %s", pause, problem)
                self._stop.wait(pause)
                pause = min(RETRY_LONGEST_S, 2 * pause)
            except TallymarkError:
                log.exception("the hosted tallymark driver has stopped; a waiting rank or `tallymark drive` takes over")
                return

    def nudge(self) -> None:
        """A marker was published: look now."""
        self._driver.nudge()

    def stop(self) -> None:
        """End the thread after the poll under way. Calling it again does nothing."""
        self._stop.set()
        self._driver.nudge()
        self._thread.join(STOP_WITHIN_S)
