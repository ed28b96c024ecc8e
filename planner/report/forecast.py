"""The whole training in words: days, money, checkpoints, failures, the deadline."""

from __future__ import annotations

from planner.report.document import Block, Paragraph
from planner.report.units import format_bytes, format_count, format_fraction, format_seconds, format_tokens, plural
from planner.spec.forecast import Forecast

_WORTH_SAYING = 0.01
_SHORT_S = 3600.0  # a run this short neither fails nor costs enough to speak of


def explain_forecast(forecast: Forecast | None) -> tuple[str, ...]:
    """Sentences for people; none for a short run without a deadline."""
    if forecast is None or (forecast.work_s < _SHORT_S and not forecast.within_s):
        return ()
    sentences = [_time(forecast), _money(forecast)]
    if forecast.within_s:
        sentences.append(_deadline(forecast))
    return (*sentences, _checkpoints(forecast))


def forecast_blocks(forecast: Forecast | None) -> tuple[Block, ...]:
    """The report's section."""
    sentences = explain_forecast(forecast)
    if forecast is None or not sentences:
        return ()
    sources = f"Failures: {forecast.mtbf_source}. Writing: {forecast.write_source}."
    return (*(Paragraph(text=text) for text in sentences), Paragraph(text=sources))


def format_money(amount: float, currency: str) -> str:
    """`12,300 USD`, `1.23 million USD`, `0.84 USD`."""
    if amount >= 999_500:
        return f"{amount / 1e6:,.3g} million {currency}" if amount < 1e9 else f"{amount / 1e6:,.0f} million {currency}"
    if 0 < amount < 0.005:
        return f"less than 0.01 {currency}"
    return f"{amount:,.0f} {currency}" if amount >= 100 else f"{amount:.2f} {currency}"


def deadline_words(forecast: Forecast) -> str:
    """`by 2027-03-01 (90.0 days from the start)`, or `within 30.0 days`."""
    allowed = format_seconds(forecast.within_s)
    return f"by {forecast.due} ({allowed} from the start)" if forecast.due else f"within {allowed}"


def _time(forecast: Forecast) -> str:
    return (
        f"The whole training, {plural(forecast.steps, 'step')} ({format_tokens(forecast.tokens)}), takes "
        f"{format_seconds(forecast.expected_s)} ({forecast.kind}), {format_seconds(forecast.work_s)} of it steps."
    )


def _money(forecast: Forecast) -> str:
    amount = forecast.gpu_hours
    hours = f"{format_count(round(amount)) if amount >= 10 else f'{amount:.2g}'} GPU-hours"
    if not forecast.price_per_gpu_hour:
        return f"It takes {hours}; what they cost is not known: no price is given (cluster.price_per_gpu_hour, prices)."
    price = f"{forecast.price_per_gpu_hour:g} {forecast.currency} a GPU-hour"
    source = f" ({forecast.price_source})" if forecast.price_source else ""
    return f"It costs {format_money(forecast.cost, forecast.currency)}: {hours} at {price}{source}."


def _deadline(forecast: Forecast) -> str:
    spare_s = forecast.within_s - forecast.expected_s
    end = f"{format_seconds(spare_s)} to spare" if spare_s >= 0 else f"{format_seconds(-spare_s)} too late"
    return f"It has to be done {deadline_words(forecast)}: {end}."


def _checkpoints(forecast: Forecast) -> str:
    failures = forecast.expected_failures
    expected = f"about {failures:.0f} failures in all" if failures >= 1.5 else f"{failures:.2g} failures in all"
    return (
        f"A checkpoint every {format_seconds(forecast.checkpoint_interval_s)} "
        f"({plural(forecast.checkpoint_interval_steps, 'step')}) loses the least: each is "
        f"{format_bytes(forecast.checkpoint_bytes)} and takes {format_seconds(forecast.checkpoint_write_s)} to write, "
        f"and on {plural(forecast.nodes, 'node')} something fails every {format_seconds(forecast.between_failures_s)} "
        f"({expected}); writing, lost work and restarts are {format_fraction(forecast.lost_fraction)} of the time"
        f"{_own_interval(forecast)}."
    )


def _own_interval(forecast: Forecast) -> str:
    """What the job's own interval loses, where that is more than a hundredth of the time more."""
    if forecast.own_lost_fraction - forecast.lost_fraction < _WORTH_SAYING:
        return ""
    return (
        f", and {format_fraction(forecast.own_lost_fraction)} with the job's own interval of "
        f"{plural(forecast.own_interval_steps, 'step')}"
    )
