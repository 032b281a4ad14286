"""Which cloud machine this is, from Amazon's metadata service (IMDSv2) and from what the firmware says."""

from __future__ import annotations

import http.client
import json
import time
from pathlib import Path
from typing import Any

from .metadata_service import ADDRESS, MetadataService

LIMIT_S = 2.0
DMI = Path("/sys/class/dmi/id")
# of the identity document; the account number stays out
KEEP = ("instanceType", "instanceId", "region", "availabilityZone", "imageId", "architecture")
NOT_ASKED = "the metadata service was not asked; set platform.metadata: true to ask it"


def instance(
    *, metadata: bool, address: tuple[str, int] = ADDRESS, limit_s: float = LIMIT_S
) -> dict[str, Any]:
    """What the machine is; `reason` says why there is no answer. `firmware` needs no network."""
    facts: dict[str, Any] = {}
    if firmware := _firmware():
        facts["firmware"] = firmware
    if not metadata:
        return {**facts, "reason": NOT_ASKED}
    try:
        return {**facts, **_ask(address, limit_s)}
    except (OSError, ValueError, http.client.HTTPException) as error:
        return {**facts, "reason": f"no answer from the metadata service at {address[0]}: {error}"}


def _ask(address: tuple[str, int], limit_s: float) -> dict[str, Any]:
    service, stop = MetadataService(address), time.monotonic() + limit_s

    def got(path: str) -> str:
        status, text = service.get(path, within_s=stop - time.monotonic())
        if status != http.client.OK:
            raise ValueError(f"GET {path} answered {status}")
        return text

    document = json.loads(got("/latest/dynamic/instance-identity/document"))
    facts = {key: document[key] for key in KEEP if document.get(key) is not None}
    # spot or on-demand: it decides which price holds
    facts["lifeCycle"] = got("/latest/meta-data/instance-life-cycle")
    return facts


def _firmware(folder: Path = DMI) -> dict[str, str]:
    """Maker and product as the firmware names them; on EC2 the product is the instance type."""
    facts = {}
    for name in ("sys_vendor", "product_name"):
        try:
            facts[name] = (folder / name).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            continue
    return {name: value for name, value in facts.items() if value}
