"""Whether the client measured the engine or itself."""

import numpy as np

from harness.cell_view import CellView
from harness.checks.finding import OK, WAITING, Finding, invalid, warning
from harness.records import Session
from harness.requests import middle

LATENESS_LIMIT = 0.01
CLIENT_CPU_WARNING = 0.80
CLIENT_CPU_VOID = 0.95
LOOP_LAG_LIMIT_S = 0.05


def client_late(view: CellView) -> Finding:
    """1 % of what is measured: calibration against TTFT, sending against the wall time."""
    walls, lateness = view.ok.column("wall_s"), view.ok.column("send_lateness_s")
    lasted = walls.known & (walls.values > 0)
    late = np.flatnonzero(lasted & (lateness.values > LATENESS_LIMIT * walls.values))
    if len(late):
        first = view.ok[int(late[0])]
        return warning(
            f"Request {first.where.request_id} left {first.send_lateness_s * 1e3:.1f} ms "
            "after its time, more than 1 % of what it measures. Free the client's cores, or "
            "lower the concurrency."
        )
    return _late_by_calibration(view) or _beyond_calibration(view) or OK


def _late_by_calibration(view: CellView) -> Finding | None:
    added = [lateness_s for s in view.sessions if (lateness_s := _added_s(view, s)) is not None]
    ttfts = view.ok.known("ttft_s")
    if not added or not len(ttfts) or max(added) <= LATENESS_LIMIT * middle(ttfts):
        return None
    return warning(
        f"This client adds up to {max(added) * 1e3:.2f} ms (p99), more than 1 % of the median "
        f"TTFT of {middle(ttfts) * 1e3:.1f} ms: read TTFT with that in mind. Free the "
        "client's cores and run `dflashbench doctor`.",
        touches=WAITING,
    )


def _added_s(view: CellView, session: Session) -> float | None:
    """What the client adds at the cell's concurrency, or at the next above that was calibrated."""
    levels = session.calibration.lateness if session.calibration else ()
    at_least = [level for level in levels if level.concurrency >= view.cell.concurrency]
    if at_least:
        return min(at_least, key=lambda level: level.concurrency).added_ttft_p99_s
    return session.client_lateness_s


def _beyond_calibration(view: CellView) -> Finding | None:
    """More at once, or more events a second, than this client was seen to measure rightly."""
    for calibration in (session.calibration for session in view.sessions):
        if calibration is None:
            continue
        highest = max(level.concurrency for level in calibration.lateness)
        if view.cell.concurrency > highest:
            return warning(
                f"This client was calibrated up to {highest} requests at once, not for "
                f"{view.cell.concurrency}: what it adds there is unknown."
            )
        rate, tried = _events_per_s(view), calibration.unclean_events_per_s
        limit = calibration.clean_events_per_s or (0 if tried else None)
        if rate is not None and limit is not None and rate > limit:
            return warning(
                f"About {rate:.0f} events a second came in; up to {limit} this client's rates were "
                f"seen to be right within 1 %{f', at {tried} not' if tried else ''}. Free the "
                "client's cores, or let the engine send more tokens per event."
            )
    return None


def _events_per_s(view: CellView) -> float | None:
    """Of all streams together: the middle stream's rate, times the streams there were at once."""
    first, last = view.ok.column("ttft_s"), view.ok.column("t_last_s")
    lasted = first.known & last.known & (last.values > first.values)
    events = view.ok.column("num_output_events").values[lasted]
    rates = events / (last.values - first.values)[lasted]
    at_once = max((end.in_flight_max for end in view.ends), default=0)
    return at_once * middle(rates) if len(rates) else None


def client_busy(view: CellView) -> Finding:
    shares = [end.cpu_share for end in view.ends if end.cpu_share is not None]
    if shares and max(shares) > CLIENT_CPU_WARNING:
        message = (
            f"The client used {max(shares) * 100:.0f} % of a core, so it may have measured itself. "
            "Free its cores, or lower the concurrency."
        )
        return invalid(message) if max(shares) > CLIENT_CPU_VOID else warning(message)
    lags = [end.loop_lag_max_s for end in view.ends if end.loop_lag_max_s is not None]
    if lags and max(lags) > LOOP_LAG_LIMIT_S:
        return warning(
            f"The client's event loop stood still for {max(lags) * 1e3:.0f} ms, and reads that "
            "came in meanwhile are stamped late. Keep other work off the client's cores."
        )
    return OK
