"""Whether the requests were let go as the cell asks."""

from harness.cell_view import CellView
from harness.checks.finding import OK, Finding, alternatives, invalid, warning


def balanced_mix(view: CellView) -> Finding:
    """In every boot, every prompt of the set finished equally often."""
    for boot_id in view.boot_ids:
        finished = view.ok.where("boot_id", boot_id).counts("prompt_id")
        counts = [finished.get(prompt, 0) for prompt in view.prompt_ids]
        if len(set(counts)) > 1:
            return warning(
                f"The prompts finished {min(counts)} to {max(counts)} times each, so this level "
                "serves another mix than the balanced ones and is not part of the comparable "
                "curve. Set `assignment: balanced`, or a level that the number of prompts "
                "divides."
            )
    return OK


def in_flight_is_c(view: CellView) -> Finding:
    wanted = view.cell.concurrency
    reached = {end.in_flight_max for end in view.ends}
    if view.cell.rate_per_s is not None:
        return _bound_of_arrivals(reached, wanted)
    if not reached or reached == {wanted}:
        return OK
    message = f"{alternatives(reached)} requests were in flight where the cell asks for {wanted}."
    if max(reached) > wanted:
        return invalid(f"{message} This is a defect of the harness: please report it with the run.")
    return warning(f"{message} Give the level at least {wanted} requests per repetition.")


def _bound_of_arrivals(reached: set[int], bound: int) -> Finding:
    if bound not in reached:
        return OK
    return warning(
        f"{bound} requests were in flight, which is the most that the cell allows: arrivals waited "
        "for a place, and their lateness says how long. Raise the level, or lower `rate_per_s`."
    )
