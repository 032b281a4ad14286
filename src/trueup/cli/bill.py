"""`trueup bill RUN...`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from trueup.schema import InputError

from .load_bills import PEAK_OPTION, TRAFFIC_OPTION, all_loads, print_load_bills, traffic_asked
from .money import (
    DEBUG_HOURS_OPTION,
    DEBUG_RATE_OPTION,
    MODELS_OPTION,
    ONE_OFF_OPTION,
    asked_prices,
    one_off_asked,
    requests_given,
)
from .output import JSON_OPTION, print_json, print_rich, say
from .records import PRICE_OPTION, PRICE_SOURCE_OPTION, open_store, price_given, record_of, resolved

if TYPE_CHECKING:
    from trueup.analysis.asked_prices import PriceRequest
    from trueup.analysis.bill import Bill, OneOff
    from trueup.analysis.budget import Budget, BudgetVerdict
    from trueup.analysis.energy_cost import Tariff
    from trueup.analysis.side_by_side import ModelBill
    from trueup.analysis.study_bill import StudyBill
    from trueup.schema import Price, RunRecord

OVER_BUDGET = 3  # exit code
RUNS_ARGUMENT = typer.Argument(
    help="Runs: ids, unique prefixes, names, or `last`; a pattern of names ('demo-*') or conditions "
    "('tune.rank=16') stand for a study.",
    metavar="RUN...",
)


def bill(
    refs: list[str] = RUNS_ARGUMENT,
    usd_per_hour: float | None = PRICE_OPTION,
    price_source: str = PRICE_SOURCE_OPTION,
    models: list[str] = MODELS_OPTION,
    tariff: float | None = typer.Option(
        None, "--tariff", help="USD per kWh: prices the measured energy. Default: the recipe's."
    ),
    estimate_energy: bool = typer.Option(
        False, "--estimate-energy", help="Where there is no meter, estimate the energy by the chips' TDP."
    ),
    one_off: float | None = ONE_OFF_OPTION,
    debug_hours: float | None = DEBUG_HOURS_OPTION,
    usd_per_debug_hour: float | None = DEBUG_RATE_OPTION,
    over: int | None = typer.Option(
        None, "--over", help="Runs that the one-off is spread over. Default: those that are billed.", min=1
    ),
    study: bool = typer.Option(False, "--study", help="Bill the runs as one study: per run and together."),
    budget: float | None = typer.Option(
        None, "--budget", help="Red line in USD per million useful tokens, instead of the recipe's."
    ),
    enforce: bool = typer.Option(False, "--enforce", help="Exit with 3 where the bill is over the red line."),
    traffic: float | None = TRAFFIC_OPTION,
    peak: float = PEAK_OPTION,
    as_json: bool = JSON_OPTION,
) -> None:
    """Say what every dollar of a run bought, under one price or several. With --json: one bill, a list of
    them for several runs, or a study's."""
    price = price_given(usd_per_hour, price_source)
    requests = requests_given(models)
    red_line, tariff_at = _budget_given(budget), _tariff_given(tariff)
    records, many = _records(refs)
    if all_loads(records, "bill"):
        of_training = {
            "--price": models,
            "--tariff": tariff,
            "--estimate-energy": estimate_energy,
            "--one-off": one_off or debug_hours,
            "--study": study,
            "--budget": budget,
            "--enforce": enforce,
        }
        print_load_bills(records, price, traffic_asked(traffic, peak), of_training, as_json=as_json)
        return
    if traffic is not None or peak != 1.0:
        raise InputError("--traffic and --peak are for loads on a server: this run trained a model")
    once = one_off_asked(one_off, debug_hours, usd_per_debug_hour, over or len(records))
    if over is not None and once is None:
        raise InputError(
            "--over spreads a one-off: give --one-off, or --debug-hours and --usd-per-debug-hour"
        )
    from trueup.analysis.bill import make_bill
    from trueup.analysis.study_bill import make_study_bill

    asked = _Models(requests, once)
    bills = [
        make_bill(
            record,
            price or record.header.price or asked.first_price(record),
            one_off=once,
            budget=red_line,
            tariff=tariff_at,
            estimate_energy=estimate_energy,
        )
        for record in records
    ]
    rows = {one.run: asked.rows(one, record) for one, record in zip(bills, records, strict=True)}
    as_study = study or many
    whole = make_study_bill(bills, budget=red_line) if len(bills) > 1 or as_study else None
    if as_json:
        _print_json(bills, rows, whole if as_study else None)
    else:
        _print(bills, records, rows, whole, each=not as_study)
    if enforce:
        enforce_budget(bills, whole)


def _budget_given(usd: float | None) -> Budget | None:
    from trueup.analysis.budget import budget_given

    return None if usd is None else budget_given(usd, "--budget")


def _tariff_given(usd_per_kwh: float | None) -> Tariff | None:
    from trueup.analysis.energy_cost import tariff_given

    return None if usd_per_kwh is None else tariff_given(usd_per_kwh, "--tariff")


class _Models:
    """The prices asked for, looked up for each run in one book."""

    def __init__(self, requests: list[PriceRequest], one_off: OneOff | None) -> None:
        self._asked = asked_prices(requests)
        self._one_off = one_off
        self._any = bool(requests)

    def first_price(self, record: RunRecord) -> Price | None:
        """The first of the prices asked for that is one in dollars: for a run that has none of its own."""
        from trueup.analysis.asked_prices import as_price

        found = (as_price(asked, record) for asked in self._asked(record))
        return next((price for price in found if price is not None), None)

    def rows(self, bill: Bill, record: RunRecord) -> tuple[ModelBill, ...]:
        from trueup.analysis.side_by_side import as_billed, under_models

        if not self._any:
            return ()
        return under_models(bill, record.header, [as_billed(bill), *self._asked(record)], self._one_off)


def _records(refs: list[str]) -> tuple[list[RunRecord], bool]:
    """The records, each once, and whether a pattern or a condition stood for some of them."""
    from trueup.store.selection import conditions_of, is_pattern

    with open_store() as store:
        ids: list[str] = []
        many = False
        for ref in refs:
            selects = bool(is_pattern(ref) or conditions_of(ref))
            ids += store.meant_by(ref) if selects else [resolved(store, ref)]
            many = many or selects
        return [record_of(store, run_id) for run_id in dict.fromkeys(ids)], many


def _print_json(bills: list[Bill], rows: dict[str, tuple[ModelBill, ...]], study: StudyBill | None) -> None:
    documents = [_with_models(one, rows[one.run]) for one in bills]
    if study is None:
        print_json(documents[0] if len(documents) == 1 else documents)
        return
    from trueup.analysis.side_by_side import study_under_models

    together = study_under_models(rows, study.useful_tokens)
    print_json({**_with_models(study, together), "bills": documents})


def _with_models(one: Bill | StudyBill, rows: tuple[ModelBill, ...]) -> dict[str, Any]:
    return {**one.model_dump(mode="json"), "price_models": [row.model_dump(mode="json") for row in rows]}


def _print(
    bills: list[Bill],
    records: list[RunRecord],
    rows: dict[str, tuple[ModelBill, ...]],
    study: StudyBill | None,
    *,
    each: bool,
) -> None:
    from trueup.report.study_bill import models_text, study_text
    from trueup.report.terminal import bill_text

    if each:
        for one, record in zip(bills, records, strict=True):
            print_rich(bill_text(one, record))
            if rows[one.run]:
                print_rich("")
                print_rich(models_text(rows[one.run]))
            if study is not None:
                print_rich("")
    if study is not None:
        from trueup.analysis.side_by_side import study_under_models

        print_rich(study_text(study))
        together = study_under_models(rows, study.useful_tokens)
        if together:
            print_rich("")
            print_rich(models_text(together))


def enforce_budget(bills: list[Bill], study: StudyBill | None) -> None:
    """Exit with 3 over the study's red line, or, where it has none, over that of any of the runs."""
    verdicts = [study.budget] if study is not None and study.budget else [one.budget for one in bills]
    held: list[BudgetVerdict] = [one for one in verdicts if one is not None]
    if not held:
        raise InputError(
            "there is no red line to enforce: the recipe gives one by budget.usd_per_million_tokens, or give "
            "--budget USD"
        )
    from trueup.report.headline import budget_text

    over = [one for one in held if one.verdict == "over"]
    for one in over:
        say(budget_text(one))
    if over:
        raise typer.Exit(OVER_BUDGET)
