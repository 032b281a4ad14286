"""Is a run that says "running" still running? Its heartbeat and, on the same machine, its process tell."""

from __future__ import annotations

import os
import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from trueup.schema import RunHeader
from trueup.schema.run import HEADER_FILE, HEARTBEAT_FILE, HEARTBEAT_STALE_S

# A process with the recorded id that started this much after the run is another one: ids are reused.
SAME_PROCESS_WITHIN_S = 5.0


def why_stopped(folder: Path, header: RunHeader) -> str | None:
    """Why a run recorded as running no longer is, or None while it may be."""
    beat = last_beat(folder)
    if beat is None:
        return "it left no heartbeat"
    since = f"its heartbeat stopped at {beat.isoformat(timespec='seconds')}"
    pid = _pid_gone_here(header.environment)
    if pid is not None:
        return f"the process ({pid}) ended without closing the run; {since}"
    # One from the future was written before the clock was set back; a process that lives writes it anew.
    if abs((datetime.now(UTC) - beat).total_seconds()) > HEARTBEAT_STALE_S:
        return f"{since}: the process was killed or its machine went down"
    return None


def last_beat(folder: Path) -> datetime | None:
    """When the run last showed life: the heartbeat's time, or run.json's where there is no heartbeat."""
    return changed_at(folder / HEARTBEAT_FILE) or changed_at(folder / HEADER_FILE)


def changed_at(file: Path) -> datetime | None:
    """When a file was last written, or None where that cannot be told."""
    try:
        return datetime.fromtimestamp(file.stat().st_mtime, UTC)
    except (OSError, ValueError, OverflowError):
        return None


def parse_instant(value: Any) -> datetime | None:
    """An instant from ISO 8601 text (UTC where it names no zone) or seconds since 1970; None if neither."""
    try:
        if isinstance(value, str):
            instant = datetime.fromisoformat(value)
            return instant if instant.tzinfo else instant.replace(tzinfo=UTC)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return datetime.fromtimestamp(value, UTC)
    except (ValueError, OverflowError, OSError):
        pass
    return None


def _pid_gone_here(environment: dict[str, Any]) -> int | None:
    """The recorded process id, if the run was on this machine and that process is gone."""
    host, process = environment.get("host"), environment.get("process")
    if not isinstance(host, dict) or not isinstance(process, dict):
        return None
    pid = process.get("pid")
    if host.get("hostname") != socket.gethostname() or not isinstance(pid, int) or not 0 < pid < 2**31:
        return None
    return None if _is_alive(pid, parse_instant(process.get("started_at"))) else pid


def _is_alive(pid: int, started: datetime | None) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # it is there and belongs to someone else
    import psutil

    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        created = datetime.fromtimestamp(process.create_time(), UTC)
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True
    return started is None or created <= started + timedelta(seconds=SAME_PROCESS_WITHIN_S)
