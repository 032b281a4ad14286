"""Why a service gives no answer."""

from __future__ import annotations

from trueup.schema import TrueupError


class ServiceError(TrueupError):
    """No answer: the service failed, or is not there for requests now."""


class NotReadyError(ServiceError):
    """The engine is still loading or warming up."""


class DrainingError(ServiceError):
    """The service finishes what it accepted and takes nothing new."""


class BusyError(ServiceError):
    """As many requests wait as may. `retry_after_s`: when to expect room."""

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
