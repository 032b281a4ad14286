"""Runs whose records hold what nothing can have measured: their comparison is no traceback."""

from __future__ import annotations

import pytest
from compared_runs import PER_MILLION, make_run

from trueup.analysis.compare import compare, group_of
from trueup.analysis.compare_reproduction import reproduction
from trueup.schema import InputError, Measurement

COST = "usd_per_million_useful_tokens"


@pytest.mark.parametrize(
    ("value", "ci"), [(1.7e308, None), (5e-324, None), (-1.7e308, None), (0.1, (5e-324, 5e-324))]
)
def test_a_figure_beyond_comparison_is_not_known(value: float, ci: tuple[float, float] | None) -> None:
    damaged = Measurement(value=value, unit=PER_MILLION, kind="derived", ci=ci)
    run = make_run("00000001", figures={COST: damaged})
    assert "is beyond what can be compared" in (run.measurements[COST].reason or "")
    other = make_run("00000002", 0.1)
    rows = {row.name: row for row in reproduction(run, other).measurements}
    assert rows[COST].then.value is None
    (one,) = [f for f in compare([group_of("a", [run]), group_of("b", [other])]).findings if f.metric == COST]
    assert one.ratio.value is None


@pytest.mark.parametrize("wall_s", [-5.0, 1.7e308])
def test_a_damaged_wall_clock_is_refused(wall_s: float) -> None:
    with pytest.raises(InputError, match="run 00000001 has a damaged record: its wall clock took"):
        make_run("00000001", wall_s=wall_s)
