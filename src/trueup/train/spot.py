"""Amazon's two-minute notice before it takes a spot instance back, asked for beside the run."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Mapping
from typing import Any

from trueup.analysis.guard_records import Asked
from trueup.telemetry.metadata_service import ADDRESS, MetadataService

EVERY_S = 5.0
EVERY_WITHOUT_ANSWER_S = 60.0
ANSWERS_WITHIN_S = 2.0
STOP_WITHIN_S = 1.0
WHO = "spot"
MAKER = "Amazon EC2"


def is_on_ec2(instance: Mapping[str, Any]) -> bool:
    """From the section `instance` of a run's environment: what the firmware and the metadata service said."""
    firmware = instance.get("firmware")
    made_by = firmware.get("sys_vendor") if isinstance(firmware, Mapping) else None
    return made_by == MAKER or "instanceType" in instance


class SpotWatch:
    """Asks every 5 s from `start` to `close`; `taken` gives the order to stop, once, when there is a notice.

    While nobody answers it asks once a minute. Nothing is raised, and the run waits for nothing.
    """

    def __init__(self, address: tuple[str, int] = ADDRESS, *, every_s: float = EVERY_S) -> None:
        self._service = MetadataService(address)
        self._every_s = every_s
        self._notice: str | None = None
        self._told = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="trueup-spot", daemon=True)

    def taken(self) -> tuple[Asked, ...]:
        """The order to save and stop, once there is a notice; nothing before and after."""
        if self._notice is None or self._told:
            return ()
        self._told = True
        return (Asked(kind="stop", who=WHO, why=self._notice),)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(STOP_WITHIN_S)

    def _watch(self) -> None:
        wait_s = 0.0
        while not self._stop.wait(wait_s):
            try:
                self._notice = self._ask()
                wait_s = self._every_s
            except (OSError, ValueError, http.client.HTTPException):
                self._service.forget()
                wait_s = max(self._every_s, EVERY_WITHOUT_ANSWER_S)
            if self._notice is not None:
                return

    def _ask(self) -> str | None:
        """The notice in words, or None while there is none. ValueError where the answer is no answer."""
        status, text = self._service.get("/latest/meta-data/spot/instance-action", within_s=ANSWERS_WITHIN_S)
        if status == http.client.NOT_FOUND:
            return None
        if status != http.client.OK:
            raise ValueError(f"the metadata service answered {status}")
        document = json.loads(text)
        if not isinstance(document, dict) or "action" not in document:
            raise ValueError("the notice is not what is documented")
        when = f" at {document['time']}" if document.get("time") else ""
        return f"the spot instance is taken back (action {document['action']}{when})"
