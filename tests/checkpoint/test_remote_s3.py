"""An S3 endpoint that throttles, breaks, falls silent, refuses or is not there: nothing half is taken for a
checkpoint, and a person is told quickly what is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from remote_folders import FILES, RUN, content, save
from s3_endpoint import BUCKET, Endpoint, Fault, first, point_at

from trueup.checkpoint.manifest import MANIFEST_FILE
from trueup.checkpoint.remote import Remote, pull_newest
from trueup.checkpoint.remote_files import Retry
from trueup.schema import StorageError

ADDRESS = f"s3://{BUCKET}/saves"
FOLDER = f"{ADDRESS}/{RUN}/00000040"
QUICK_TRIES = 2  # of s3fs itself, before trueup waits


@pytest.fixture(scope="module")
def served() -> Iterator[Endpoint]:
    with Endpoint().serving() as endpoint:
        yield endpoint


@pytest.fixture
def endpoint(served: Endpoint, monkeypatch: pytest.MonkeyPatch) -> Endpoint:
    point_at(served, monkeypatch)
    served.reset()
    return served


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "run" / "checkpoints"
    folder.parent.mkdir()
    return folder


@pytest.fixture
def waits() -> list[float]:
    """Seconds that were waited, or would have been."""
    return []


@pytest.fixture
def retry(waits: list[float]) -> Retry:
    return Retry(sleep=waits.append, answer_s=60)


def test_files_go_up_in_order_and_the_manifest_last(endpoint: Endpoint, root: Path, retry: Retry) -> None:
    Remote(ADDRESS, retry).upload(save(root, 40), RUN)
    put = [one for one in endpoint.requests if one.startswith("PUT")]
    assert put == [f"PUT /{BUCKET}/saves/{RUN}/00000040/{name}" for name in (*FILES, MANIFEST_FILE)]
    endpoint.requests.clear()
    Remote(ADDRESS, retry).upload(root / "00000040", RUN)
    assert not [one for one in endpoint.requests if one.startswith("PUT")]


def test_the_manifest_goes_first_when_one_is_removed_or_replaced(
    endpoint: Endpoint, root: Path, retry: Retry
) -> None:
    remote = Remote(ADDRESS, retry)
    for change in (lambda: remote.upload(save(root, 40), RUN), lambda: remote.remove(RUN, 40)):
        remote.upload(save(root, 40), RUN)
        endpoint.requests.clear()
        change()
        changing = [one for one in endpoint.requests if not one.startswith(("GET", "HEAD"))]
        assert changing[0] == f"DELETE /{BUCKET}/saves/{RUN}/00000040/{MANIFEST_FILE}"
        assert len(changing) > 1
    assert endpoint.stored() == []


@pytest.mark.parametrize("fault", ["slow_down", "cut"])
def test_a_passing_fault_is_waited_out(
    endpoint: Endpoint, root: Path, retry: Retry, waits: list[float], fault: Fault
) -> None:
    folder = save(root, 40)
    endpoint.fault = first(3 * QUICK_TRIES, fault, "PUT", "one.bin")
    remote = Remote(ADDRESS, retry)
    remote.upload(folder, RUN)
    assert waits
    assert waits == list(retry.waits_s[: len(waits)])
    assert content(remote.pull(RUN, 40, root.parent / "back")) == content(folder)


def test_a_throttled_listing_and_download_are_waited_out(
    endpoint: Endpoint, root: Path, retry: Retry, waits: list[float]
) -> None:
    folder = save(root, 40)
    Remote(ADDRESS, retry).upload(folder, RUN)
    endpoint.fault = first(3 * QUICK_TRIES, "slow_down")
    pulled = pull_newest(f"{ADDRESS}/{RUN}", root.parent / "back", print, retry)
    assert pulled is not None
    assert content(pulled) == content(folder)
    assert waits == [1.0, 2.0, 4.0]


@pytest.mark.parametrize(
    ("fault", "said", "file"),
    [("slow_down", "SlowDown", MANIFEST_FILE), ("cut", "Connection was closed", "one.bin")],
)
def test_an_upload_that_breaks_for_good_leaves_no_checkpoint(
    endpoint: Endpoint, root: Path, retry: Retry, waits: list[float], fault: Fault, said: str, file: str
) -> None:
    remote, messages = Remote(ADDRESS, retry), []
    older, newer = save(root, 20), save(root, 40)
    remote.upload(older, RUN)
    endpoint.fault = first(1000, fault, "PUT", file)
    with pytest.raises(StorageError, match=rf"cannot upload {FOLDER}/{file}: {said}.*tried 6 times"):
        remote.upload(newer, RUN)
    assert waits == list(retry.waits_s)
    assert sum(waits) < 60
    assert f"saves/{RUN}/00000040/compile/cache.zip" in endpoint.stored()

    endpoint.fault = None
    assert remote.found(RUN) == ([20], [40])
    pulled = pull_newest(f"{ADDRESS}/{RUN}", root.parent / "back", messages.append, retry)
    assert pulled is not None
    assert content(pulled) == content(older)
    assert len(messages) == 1

    remote.upload(newer, RUN)
    assert remote.found(RUN) == ([20, 40], [])


def test_a_download_that_breaks_does_not_go_back_to_an_older_one(
    endpoint: Endpoint, root: Path, retry: Retry
) -> None:
    """The newest may be whole: a network that is down is no reason to lose its steps."""
    remote, back = Remote(ADDRESS, retry), root.parent / "back"
    for step in (20, 40):
        remote.upload(save(root, step), RUN)
    endpoint.fault = first(1000, "cut", "GET", "one.bin")
    with pytest.raises(StorageError, match=rf"cannot download {FOLDER}/one\.bin"):
        pull_newest(f"{ADDRESS}/{RUN}", back, print, retry)
    assert list(back.iterdir()) == []


def test_silence_ends(endpoint: Endpoint, root: Path, waits: list[float]) -> None:
    endpoint.fault = first(1000, "silent", "PUT", "one.bin")
    retry = Retry(waits_s=(1.0, 2.0), answer_s=1.0, sleep=waits.append)
    with pytest.raises(StorageError, match=rf"{FOLDER}/one\.bin: no answer in time \(tried 3 times\)"):
        Remote(ADDRESS, retry).upload(save(root, 40, size=10), RUN)


def test_patience_ends_before_the_waits_do(endpoint: Endpoint, root: Path, waits: list[float]) -> None:
    endpoint.fault = first(1000, "slow_down")
    with pytest.raises(StorageError, match="tried 2 times"):
        Remote(ADDRESS, Retry(waits_s=(1.0, 100.0, 1.0), sleep=waits.append)).upload(save(root, 40), RUN)
    assert waits == [1.0]


# --- What waiting would not help ---------------------------------------------------------------------------


def test_missing_credentials_are_said_without_waiting(
    endpoint: Endpoint, root: Path, retry: Retry, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(StorageError, match=rf"{FOLDER}.*credentials\. Set AWS_ACCESS_KEY_ID"):
        Remote(ADDRESS, retry).upload(save(root, 40), RUN)
    assert (waits, endpoint.requests) == ([], [])


def test_a_refusal_is_said_without_waiting(
    endpoint: Endpoint, root: Path, retry: Retry, waits: list[float]
) -> None:
    endpoint.fault = first(1000, "denied", "PUT")
    with pytest.raises(StorageError, match=rf"{FOLDER}.*AccessDenied: Access Denied\. Check the credentials"):
        Remote(ADDRESS, retry).upload(save(root, 40), RUN)
    assert waits == []
    assert len([one for one in endpoint.requests if one.startswith("PUT")]) == 1


def test_a_missing_bucket_is_said_without_waiting_and_not_made(
    endpoint: Endpoint, root: Path, retry: Retry, waits: list[float]
) -> None:
    remote, folder = Remote("s3://elsewhere/saves", retry), save(root, 40)
    for call in (
        lambda: remote.upload(folder, RUN),
        remote.runs,
        lambda: remote.steps(RUN),
        lambda: remote.pull(RUN, 40, root),
        lambda: pull_newest(f"s3://elsewhere/saves/{RUN}", root, print, retry),
    ):
        with pytest.raises(StorageError, match=r"s3://elsewhere/saves.*NoSuchBucket"):
            call()
    assert waits == []
    assert [one["Name"] for one in endpoint.client.list_buckets()["Buckets"]] == [BUCKET]


def test_an_endpoint_that_is_not_there_is_said(
    endpoint: Endpoint, root: Path, retry: Retry, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")  # the discard port: nothing listens
    with pytest.raises(StorageError, match=rf"{FOLDER}.*Could not connect.*Check the network"):
        Remote(ADDRESS, retry).upload(save(root, 40), RUN)
    assert waits == list(retry.waits_s)


# --- Large files -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_file_of_many_parts_comes_back(endpoint: Endpoint, root: Path, retry: Retry) -> None:
    """Over 100 MB s3fs sends parts. One that breaks is sent again, by itself."""
    folder = save(root, 40, large=110_000_000)
    parts = iter(range(1000))
    endpoint.fault = lambda method, path: (
        "cut" if method == "PUT" and path.endswith("one.bin") and next(parts) == 1 else None
    )
    remote = Remote(ADDRESS, retry)
    remote.upload(folder, RUN)
    puts = [one for one in endpoint.requests if one.startswith("PUT") and one.endswith("one.bin")]
    assert len(puts) == 4  # three parts, one of them twice
    assert content(remote.pull(RUN, 40, root.parent / "back")) == content(folder)
