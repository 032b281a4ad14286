"""Runs that travel: what arrives is what left, and nothing else gets in."""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import re
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from store_records import make_record, make_step, runs, same, write_folder

from trueup.schema import Event, InputError, RunRecord, Sample, Segment, StorageError, TrueupError
from trueup.store import Store, bundle_format, read_run_folder
from trueup.store.bundle import export_run, import_run
from trueup.store.scrub import Scrubber

quick = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
Entries = dict[str, bytes]


def exported(home: Path, record: RunRecord | None = None, segments: list[Segment] | None = None) -> Path:
    made, parts = make_record()
    record, segments = record or made, parts if segments is None else segments
    write_folder(home, record, segments)
    return export_run(home, record.header.id, home / "run.zip")


def entries_of(bundle: Path) -> Entries:
    with zipfile.ZipFile(bundle) as opened:
        return {name: opened.read(name) for name in opened.namelist()}


def write_bundle(bundle: Path, entries: Entries) -> Path:
    with zipfile.ZipFile(bundle, "w") as opened:
        for name, raw in entries.items():
            opened.writestr(name, raw)
    return bundle


def signed(entries: Entries) -> Entries:
    """The entries with a manifest that agrees with them, as a careful forger would make it."""
    manifest = json.loads(entries["manifest.json"])
    for name in manifest["entries"]:
        raw = entries[name]
        manifest["entries"][name] = {"sha256": hashlib.sha256(raw).hexdigest(), "bytes": len(raw)}
    return {**entries, "manifest.json": json.dumps(manifest).encode()}


def refused(bundle: Path, why: str) -> None:
    """The bundle is refused for the reason given, and its would-be home holds no trace of it."""
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        with pytest.raises(InputError, match=why):
            import_run(home, bundle)
        assert [path for path in home.rglob("*") if not path.name.startswith("trueup.sqlite")] in (
            [],
            [home / "runs"],
        )
        with Store.open(home, read_only=True) as store:
            assert store.runs() == []


def edited(entries: Entries, name: str, edit: Callable[[Any], None]) -> Entries:
    value = json.loads(entries[name])
    edit(value)
    return signed({**entries, name: json.dumps(value).encode()})


def reshaped(entries: Entries, name: str, edit: Callable[[list[dict[str, Any]]], None]) -> Entries:
    table = pq.read_table(io.BytesIO(entries[name]))
    rows = table.to_pylist()
    edit(rows)
    out = io.BytesIO()
    changed = pa.Table.from_pylist(rows, schema=table.schema)
    pq.write_table(changed, out, compression="none", use_dictionary=False)
    return signed({**entries, name: out.getvalue()})


@given(run=runs())
@quick
def test_a_run_arrives_as_it_left(run: tuple[RunRecord, list[Segment]]) -> None:
    record, segments = run
    run_id = record.header.id
    with tempfile.TemporaryDirectory() as here, tempfile.TemporaryDirectory() as there:
        bundle = exported(Path(here), record, segments)
        assert import_run(Path(there), bundle).run_id == run_id
        assert same(read_run_folder(Path(there) / "runs" / run_id), record)
        with Store.open(Path(there)) as store:
            assert store.sync() == []
            arrived = store.record(run_id, samples=True)
        assert same(arrived, record)


def test_the_same_run_gives_the_same_bytes_and_arrives_once(tmp_path: Path) -> None:
    first = exported(tmp_path / "here").read_bytes()
    again = export_run(tmp_path / "here", "7f3a91c2", tmp_path / "again.zip")
    assert again.read_bytes() == first
    assert not import_run(tmp_path / "there", again).already_here
    assert import_run(tmp_path / "there", again).already_here
    assert import_run(tmp_path / "here", again).already_here
    with Store.open(tmp_path / "there") as store:
        assert [run.imported_at is not None for run in store.runs()] == [True]
    with Store.open(tmp_path / "here") as store:
        assert [run.imported_at for run in store.runs()] == [None]
    onward = export_run(tmp_path / "there", "7f3a91c2", tmp_path / "onward.zip")
    assert onward.read_bytes() == first


def test_an_interrupted_run_travels_as_interrupted(tmp_path: Path) -> None:
    record, _ = make_record(state="running", wall_s=None, ended_at=None)
    write_folder(tmp_path, record, [Segment(name="step", start_s=1.0, end_s=2.0)], heartbeat_age_s=3600)
    os.utime(tmp_path / "runs" / "7f3a91c2" / "heartbeat", (1796000000, 1796000000))
    bundle = export_run(tmp_path, "7f3a91c2", tmp_path / "run.zip")
    import_run(tmp_path / "there", bundle)
    here = read_run_folder(tmp_path / "runs" / "7f3a91c2")
    there = read_run_folder(tmp_path / "there" / "runs" / "7f3a91c2")
    assert there.header.state == "interrupted"
    assert same(here, there)
    assert import_run(tmp_path, bundle).already_here


def test_a_running_or_missing_run_is_not_exported(tmp_path: Path) -> None:
    record, segments = make_record(state="running", wall_s=None, ended_at=None)
    write_folder(tmp_path, record, segments, heartbeat_age_s=0)
    with pytest.raises(InputError, match="still running"):
        export_run(tmp_path, "7f3a91c2", tmp_path / "run.zip")
    with pytest.raises(InputError, match="is gone"):
        export_run(tmp_path, "aa01", tmp_path / "run.zip")
    assert not (tmp_path / "run.zip").exists()


def test_an_export_that_cannot_be_written_leaves_what_was_there(tmp_path: Path) -> None:
    exported(tmp_path)
    for out in (tmp_path, tmp_path / "no" / "run.zip"):
        with pytest.raises(InputError, match="cannot be written"):
            export_run(tmp_path, "7f3a91c2", out)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(StorageError, match="could not be written"):
        export_run(tmp_path, "7f3a91c2", Path("/proc/run.zip"))
    assert sorted(tmp_path.iterdir()) == before


def test_another_run_with_the_same_id_is_refused(tmp_path: Path) -> None:
    bundle = exported(tmp_path / "here")
    other, segments = make_record(name="another")
    write_folder(tmp_path / "there", other, segments)
    with pytest.raises(InputError, match=r"another run with the id 7f3a91c2 .*another"):
        import_run(tmp_path / "there", bundle)
    assert same(read_run_folder(tmp_path / "there" / "runs" / "7f3a91c2"), other)


def test_no_path_of_this_machine_leaves_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    user = tmp_path / "user"
    home = user / "share" / "trueup"
    monkeypatch.setenv("HOME", str(user))
    record, segments = make_record(
        reason=f"RuntimeError in {user}/code/train.py, line 3: see '{home}/runs/7f3a91c2/log'",
        recipe={"model": {"path": f"{home}/models/smol"}, "data": {"source": "/tmp/data/train.jsonl"}},
        environment={
            "variables": {"PATH": f"/usr/bin:/bin:{user}/bin", "CFLAGS": "-I/usr/include -O2"},
            str(user): [
                "C:\\Users\\me\\model",
                "file:///etc/hosts",
                "https://example.org/a/b",
                "tokens/s",
                "n/a",
            ],
        },
    )
    event = Event(at_s=1.0, kind="warning", message=f"kept {home}", data={"file": f"{home}/x", "n": 1.5})
    bundle = exported(home, record.model_copy(update={"events": (event,)}), segments)
    text = b"".join(entries_of(bundle).values()).decode("utf-8", "replace")
    for secret in (str(tmp_path), "/usr/bin", ":/bin", "/usr/include", "/tmp/", "/etc", "Users"):
        assert secret not in text, secret
    header = json.loads(entries_of(bundle)["run.json"])
    assert header["reason"] == (
        "RuntimeError in ~/code/train.py, line 3: see '$TRUEUP_HOME/runs/7f3a91c2/log'"
    )
    assert header["recipe"] == {
        "model": {"path": "$TRUEUP_HOME/models/smol"}, "data": {"source": ".../train.jsonl"},
    }  # fmt: skip
    assert header["environment"]["variables"] == {
        "PATH": ".../bin:.../bin:~/bin",
        "CFLAGS": "-I.../include -O2",
    }
    kept = ["https://example.org/a/b", "tokens/s", "n/a"]
    assert header["environment"]["~"] == [".../model", "file://.../hosts", *kept]
    assert import_run(home, bundle).already_here


def test_a_path_that_the_scrubber_misses_stops_the_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Scrubber, "text", lambda self, text: text)
    record, segments = make_record(environment={"variables": {"OPTIONS": "--cache=/tmp/cache"}})
    with pytest.raises(TrueupError, match=r"environment.variables.OPTIONS still holds .*/tmp/cache"):
        exported(tmp_path, record, segments)
    assert not (tmp_path / "run.zip").exists()


@given(text=st.text(st.sampled_from("/a.~-: \\C$'\""), max_size=20))
@example(text="/\\/")  # separators alone
@example(text="/C:\\")  # a path of one kind that ends where one of the other begins
@quick
def test_scrubbing_twice_changes_nothing_more(text: str) -> None:
    scrubber = Scrubber(Path("/a/a"))
    once = scrubber.text(text)
    assert scrubber.text(once) == once
    assert not re.search(r"(^|\s)/a+/a", once)


def test_a_damaged_zip_is_refused(tmp_path: Path) -> None:
    bundle = exported(tmp_path)
    raw = bundle.read_bytes()
    damaged = tmp_path / "damaged.zip"
    for cut in (0, 10, len(raw) // 2, len(raw) - 10):
        damaged.write_bytes(raw[:cut])
        refused(damaged, "not a readable bundle")
    refused(tmp_path, "cannot be read")
    refused(tmp_path / "absent.zip", "no file")


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_no_flipped_byte_gets_through(data: st.DataObject) -> None:
    """Any byte changed: refused, or (in padding that means nothing) the same run arrives."""
    with tempfile.TemporaryDirectory() as name:
        here, there = Path(name) / "here", Path(name) / "there"
        bundle = exported(here)
        raw = bytearray(bundle.read_bytes())
        raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
        bundle.write_bytes(raw)
        try:
            import_run(there, bundle)
        except InputError:
            assert not list(there.rglob("run.json"))
        else:
            assert same(read_run_folder(there / "runs" / "7f3a91c2"), make_record()[0])


@pytest.mark.parametrize(
    "name", ["../evil", "/etc/passwd", "runs/../../x", "C:\\x", "extra.json", "steps.parquet/"]
)
def test_an_entry_that_does_not_belong_is_refused(tmp_path: Path, name: str) -> None:
    entries = entries_of(exported(tmp_path))
    refused(write_bundle(tmp_path / "forged.zip", {**entries, name: b"x"}), "no run bundle has")


@pytest.mark.parametrize("name", ["manifest.json", *bundle_format.CONTENT])
def test_a_missing_entry_is_refused(tmp_path: Path, name: str) -> None:
    entries = entries_of(exported(tmp_path))
    del entries[name]
    refused(write_bundle(tmp_path / "forged.zip", entries), f"lacks {name}")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_an_entry_given_twice_is_refused(tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path / "forged.zip", entries_of(exported(tmp_path)))
    with zipfile.ZipFile(bundle, "a") as opened:
        opened.writestr("run.json", b"{}")
    refused(bundle, "twice")


@pytest.mark.parametrize("name", bundle_format.CONTENT)
def test_an_entry_unlike_its_digest_is_refused(tmp_path: Path, name: str) -> None:
    entries = entries_of(exported(tmp_path))
    refused(
        write_bundle(tmp_path / "forged.zip", {**entries, name: entries[name] + b" "}),
        f"{name} .*manifest says",
    )


def test_a_zip_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = entries_of(exported(tmp_path))
    monkeypatch.setattr(bundle_format, "MAX_ENTRY_BYTES", 100_000)
    bomb = tmp_path / "bomb.zip"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as opened:
        for name, raw in entries.items():
            opened.writestr(name, raw if name != "samples.parquet" else b"\0" * 200_000)
    refused(bomb, "unpacks to")
    # The same bomb lying about its size: 200,000 is written over by 1,000 wherever it is declared.
    raw = bomb.read_bytes()
    size, lie = (200_000).to_bytes(4, "little"), (1000).to_bytes(4, "little")
    assert raw.count(size) == 2
    bomb.write_bytes(raw.replace(size, lie))
    refused(bomb, "samples.parquet|not a readable bundle")


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (lambda header: header.update(id="../../x"), "run id is not valid"),
        (lambda header: header.update(id="x" * 65), "run id is not valid"),
        (lambda header: header.update(id="aa01"), "run id is not valid"),
        (lambda header: header.update(name="\x1b[2J"), "control characters"),
        (lambda header: header.update(state="running"), "has not ended"),
        (lambda header: header.update(wall_s=None), "has not ended"),
        (lambda header: header.update(wall_s=math.nan), "not finite"),
        (lambda header: header.update(wall_s=10.002), "spans sum to 10.0"),
        (lambda header: header.update(started_at="yesterday"), "not an instant"),
        (lambda header: header.update(format=2), "format 2"),
        (lambda header: header.update(format=2, surprise=1), "run has format 2; .*update trueup"),
        (lambda header: header.update(surprise=1), "surprise.*trueup .* wrote it"),
        (lambda header: header.pop("recipe"), "recipe"),
        (lambda header: header["price"].update(usd_per_hour=-1), "price.usd_per_hour"),
    ],
)
def test_a_forged_header_is_refused(tmp_path: Path, edit: Callable[[Any], None], why: str) -> None:
    entries = edited(entries_of(exported(tmp_path)), "run.json", edit)
    refused(write_bundle(tmp_path / "forged.zip", entries), why)


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (lambda found: found["useful_tokens"].update(value=math.inf), "finite"),
        (
            lambda found: found["useful_tokens"].update(ci=[0.0, math.inf]),
            "not finite: measurement useful_tokens",
        ),
        (lambda found: found["useful_tokens"].update(value=None), "has a value, or is 'unavailable'"),
        (lambda found: found["useful_tokens"].update(n=2**63), "measurement useful_tokens"),
        (lambda found: found["useful_tokens"].update(kind="guessed"), "kind"),
    ],
)
def test_a_forged_measurement_is_refused(tmp_path: Path, edit: Callable[[Any], None], why: str) -> None:
    entries = edited(entries_of(exported(tmp_path)), "measurements.json", edit)
    refused(write_bundle(tmp_path / "forged.zip", entries), why)


@pytest.mark.parametrize(
    ("name", "edit", "why"),
    [
        (
            "segments.parquet",
            lambda rows: rows[1].update(end_s=rows[1]["start_s"] - 1),
            "ends before it starts",
        ),
        ("segments.parquet", lambda rows: rows.pop(), "not the sum of its segments"),
        ("segments.parquet", lambda rows: rows[0].update(name=None), "segments.parquet .*name"),
        ("spans.parquet", lambda rows: rows[0].update(seconds=9.0), "'start' is not the sum"),
        ("spans.parquet", lambda rows: rows[0].update(count=7), "'start' is not the sum"),
        ("steps.parquet", lambda rows: rows[0].update(step_s=math.nan), "not finite: step.step_s"),
        ("steps.parquet", lambda rows: rows[0].update(shape=[1, 2, 3]), "steps.parquet .*shape"),
        ("samples.parquet", lambda rows: rows[0].update({"values.cpu_share": math.nan}), "sample.cpu_share"),
        ("events.parquet", lambda rows: rows[0].update(data="[1]"), "events.parquet .*data"),
        ("events.parquet", lambda rows: rows[0].update(data="{"), "events.parquet"),
    ],
)
def test_a_forged_series_is_refused(
    tmp_path: Path, name: str, edit: Callable[[list[dict[str, Any]]], None], why: str
) -> None:
    entries = reshaped(entries_of(exported(tmp_path)), name, edit)
    refused(write_bundle(tmp_path / "forged.zip", entries), why)


def test_unexpected_parquet_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = entries_of(exported(tmp_path))
    forged = tmp_path / "forged.zip"

    def steps_as(table: pa.Table, **options: Any) -> Path:
        out = io.BytesIO()
        pq.write_table(table, out, **({"compression": "none", "use_dictionary": False} | options))
        return write_bundle(forged, signed({**entries, "steps.parquet": out.getvalue()}))

    table = pq.read_table(io.BytesIO(entries["steps.parquet"]))
    import_run(tmp_path / "there", steps_as(table))  # the control: rewritten as it is, it is accepted
    refused(steps_as(table, compression="zstd"), "compressed inside")
    refused(steps_as(table, use_dictionary=True), "compressed inside")
    refused(steps_as(table.drop_columns(["loss"])), "other columns")
    refused(steps_as(table.append_column("more", pa.array([1, 2]))), "other columns")
    refused(
        write_bundle(forged, signed({**entries, "steps.parquet": b"PAR1nonsensePAR1"})),
        "not readable Parquet",
    )
    monkeypatch.setattr("trueup.store.parquet.MAX_ROWS", 1)
    refused(steps_as(table), "larger than any run's")


def test_samples_are_columns_that_other_tools_can_read(tmp_path: Path) -> None:
    table = pq.read_table(io.BytesIO(entries_of(exported(tmp_path))["samples.parquet"]))
    assert table.to_pydict() == {"at_s": [0.1, 0.2], "values.cpu_share": [0.93, None]}


def test_diverged_losses_travel(tmp_path: Path) -> None:
    record, segments = make_record(state="failed", reason="loss is NaN")
    steps = (make_step(1, loss=math.nan, grad_norm=-math.inf),)
    samples = (Sample(at_s=0.5, values={"at_s": 1.0, "values.x": 2.0}),)
    record = record.model_copy(update={"steps": steps, "samples": samples})
    import_run(tmp_path / "there", exported(tmp_path / "here", record, segments))
    assert same(read_run_folder(tmp_path / "there" / "runs" / "7f3a91c2"), record)


def test_a_disk_that_fills_while_importing_keeps_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = exported(tmp_path / "here")

    def full(self: Path, *_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "rename", full)
    with pytest.raises(StorageError, match=r"TRUEUP_HOME.*No space left on device.*nothing was kept"):
        import_run(tmp_path / "there", bundle)
    assert list((tmp_path / "there" / "runs").iterdir()) == []
