"""The table of shape plans shows every alternative with its reason, and every figure with how it is known."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from trueup.report.shapes import plan_text
from trueup.schema import Alternative, DeviceRules, Measurement, PlatformProfile, ShapePlan, unavailable


def shown(plan: ShapePlan, profile: PlatformProfile) -> str:
    console = Console(width=200, file=StringIO())
    console.print(plan_text(plan, profile, job_tokens=20480.0))
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_every_alternative_and_every_figure_is_shown() -> None:
    token_s = Measurement(value=0.004, unit="s/token", kind="measured", method="runs", n=3)
    profile = PlatformProfile(
        device_kind="cpu",
        device_name="some CPU",
        model="136M parameters, LoRA",
        rules=DeviceRules(),
        micro_batch_s=unavailable("s", "nobody measured it"),
        token_s=token_s,
        pair_s=token_s,
        head_row_s=token_s,
    )
    chosen = Alternative(
        strategy="pack",
        compile="none",
        full=((1, 512),),
        shapes=1,
        padding_share=0.019,
        head_padding_share=0.0,
        compile_s=0.0,
        total_s=130.0,
        verdict="chosen",
    )
    other = Alternative(strategy="longest", compile="layer", verdict="its shapes follow the data")
    plan = ShapePlan(
        strategy="pack",
        compile="none",
        static=False,
        full=((1, 512),),
        training=((1, 512),),
        evaluation=(),
        tokens_per_microbatch=512,
        micro_batches_per_step=1,
        steps_per_epoch=562,
        data="d",
        reason="least time",
        alternatives=(chosen, other),
    )
    text = shown(plan, profile)
    for part in (
        *("pack, compile none: least time", "training 1 x 512; evaluation none", "steps an epoch: 562"),
        *("chosen", "its shapes follow the data", "1.9 %", "2 min 10 s", "some CPU", "measured, n = 3"),
        *("unavailable", "nobody measured it", "0.004 s/token"),
    ):
        assert part in text
