"""Per-request and counter arithmetic, against numbers worked out by hand."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import measures
from harness.measures import CountersDelta, NotMeasured
from harness.records import Counters

NOTHING = Counters(
    drafts=None,
    draft_tokens=None,
    accepted_tokens=None,
    accepted_at=None,
    tested_tokens=None,
    trimmed_tokens=None,
    plain_steps=None,
    generation_tokens=None,
    prompt_tokens=None,
    requests=None,
    process_start_s=None,
    labels=(),
)


def test_decode_rate_is_tokens_over_the_time_after_the_first_one():
    assert measures.decode_rate(40, 1, 0.25, 1.24, 1.25) == 40.0


def test_strict_rate_leaves_out_what_the_first_read_brought():
    # 9 tokens, the first read brings 1, then 0.4 s for the other 8
    assert measures.decode_rate_strict(9, 1, 0.2, 0.6) == pytest.approx(20.0)
    assert measures.tpot(9, 1, 0.2, 0.6) == pytest.approx(0.05)


def test_a_reply_in_one_read_has_no_strict_rate():
    assert measures.decode_rate_strict(64, 64, 2.0, 2.0) is None
    assert measures.tpot(1, 1, 0.3, 0.3) is None


def test_a_reply_in_one_burst_has_no_rate_however_many_reads_it_took():
    # 64 tokens in 0.8 ms would be 80,000 tok/s, and 40 ms until the end of the stream 1,600
    assert measures.decode_rate_strict(64, 1, 2.0, 2.0008) is None
    assert measures.decode_rate(64, 1, 2.0, 2.0008, 2.04) is None


def test_the_excess_is_the_first_token_and_the_wait_for_the_end():
    # 10 tokens: 9 in 0.9 s, and the end 0.1 s later: 10 tok/s either way
    headline = measures.decode_rate(10, 1, 0.5, 1.4, 1.5)
    assert measures.excess(headline, measures.decode_rate_strict(10, 1, 0.5, 1.4)) == pytest.approx(
        0.0
    )
    assert measures.excess(11.0, 10.0) == pytest.approx(0.1)
    assert measures.excess(None, 10.0) is None


@pytest.mark.parametrize("missing", range(5))
def test_rates_of_unknown_quantities_are_unknown(missing):
    known = [40, 1, 0.25, 1.24, 1.25]
    known[missing] = None
    assert measures.decode_rate(*known) is None


def test_cached_prompt_tokens_were_not_computed():
    assert measures.prefill_rate(27, None, 0.27) == pytest.approx(100.0)
    assert measures.prefill_rate(27, 16, 0.11) == pytest.approx(100.0)
    assert measures.prefill_rate(1024, 1023, 0.228) is None  # this would measure the cache


def test_reads_within_a_millisecond_are_one_burst():
    found = measures.bursts([0.2, 0.2004, 0.2009, 0.5, 0.5002], [1, 1, 1, 2, 3])
    assert [(burst.at_s, burst.tokens) for burst in found] == [(0.2, 3), (0.5, 5)]
    assert measures.step_times([0.2, 0.2004, 0.2009, 0.5, 0.5002]) == pytest.approx((0.3,))


def test_a_burst_with_an_uncounted_event_has_no_token_count():
    assert measures.bursts([0.2, 0.2], [1, None])[0].tokens is None


def test_a_steps_time_is_shared_by_the_tokens_it_brought():
    assert measures.token_times([0.2, 0.4, 0.6], [1, 4, 4]) == pytest.approx([0.05] * 8)
    assert measures.token_times([0.2, 0.2004, 0.6], [1, 1, 2]) == pytest.approx([0.2, 0.2])
    assert measures.token_times([0.2, 0.4, 0.6], [1, None, 4]) is None
    assert measures.token_times([], []) is None


def test_text_without_a_token_leaves_its_time_to_the_next_token():
    assert measures.token_times([0.2, 0.4, 0.6], [1, 0, 2]) == pytest.approx([0.2, 0.2])


@given(
    st.lists(st.tuples(st.floats(0.002, 2.0), st.integers(1, 8)), min_size=1, max_size=40),
    st.integers(1, 8),
)
def test_the_mean_time_per_token_is_tpot_and_no_peak_is_below_the_rate(steps, n_first):
    at_s, tokens = [0.3], [n_first]
    for gap_s, count in steps:
        at_s.append(at_s[-1] + gap_s)
        tokens.append(count)
    times = measures.token_times(at_s, tokens)
    tpot = measures.tpot(sum(tokens), n_first, at_s[0], at_s[-1])
    assert times is not None
    assert tpot == pytest.approx(sum(times) / len(times))
    peak = measures.peak_rate(at_s, tokens)
    assert (peak is None) == (at_s[-1] - at_s[0] < 1)
    assert peak is None or peak * tpot >= 1 - 1e-9


def test_a_peak_is_the_densest_second_or_longer():
    # 6 tokens at 0.0, 0.1, ... 0.7, then nothing until 2.4: 48 in the first second
    at_s = [0.1 * i for i in range(8)] + [2.4]
    assert measures.peak_rate(at_s, [6] * 9) == pytest.approx(48)
    # 50 at both ends of 1.01 s: no second holds more than 50, but the whole stream holds 100
    assert measures.peak_rate([0.0, 1.01], [50, 50]) == pytest.approx(100 / 1.01)
    assert measures.peak_rate([0.0, 0.99], [50, 50]) is None
    assert measures.peak_rate([], []) is None


def test_distinct_4grams_of_a_loop():
    # a b a b a b a: runs abab baba abab baba, two of four are distinct
    assert measures.distinct_4gram_share("abababa") == 0.5


def test_three_words_have_no_4gram():
    assert measures.distinct_4gram_share(["to", "be", "or"]) is None


# --- counters: 16 tokens, 5 rounds of 7 drafted, 13 tested, 10 accepted ---------------------------

EXAMPLE = CountersDelta(
    drafts=5, draft_tokens=35, accepted_tokens=10, tested_tokens=13, plain_steps=0
)


def test_one_ledger_under_five_names():
    values = [
        measures.acceptance_length(EXAMPLE),
        measures.tokens_per_round(EXAMPLE, 16),
        measures.tokens_per_step_and_prefill(EXAMPLE, 16, 1),
        measures.accepted_of_tested(EXAMPLE),
        measures.acceptance_rate(EXAMPLE),
    ]
    assert values == pytest.approx([3.00, 3.20, 16 / 6, 10 / 13, 10 / 35])


def test_the_example_explains_every_token():
    # 1 from prefill + 5 of the target's own + 10 accepted = 16
    assert measures.token_identity_residual(EXAMPLE, tokens=16, requests=1) == 0
    assert measures.tokens_per_step(EXAMPLE, tokens=16, requests=1) == 3.0
    assert measures.fraction_of_ceiling(3.0, 7) == 0.375


def test_trimmed_tokens_enter_the_identity():
    delta = replace(EXAMPLE, trimmed_tokens=2)
    assert measures.token_identity_residual(delta, tokens=14, requests=1) == 0
    assert measures.token_identity_residual(EXAMPLE, tokens=14, requests=1) == -2


def test_acceptance_per_position_and_conditional():
    delta = CountersDelta(
        drafts=100, accepted_tokens=180, accepted_at=(90, 60, 30), draft_tokens=300
    )
    assert measures.acceptance_length(delta) == pytest.approx(2.8)
    assert measures.acceptance_rate(delta) == pytest.approx(0.6)
    assert measures.acceptance_at_position(delta) == pytest.approx((0.9, 0.6, 0.3))
    assert measures.conditional_acceptance(delta) == pytest.approx((0.9, 2 / 3, 0.5))


def test_a_position_behind_one_that_never_accepts_has_no_conditional():
    delta = CountersDelta(drafts=10, accepted_tokens=0, accepted_at=(0, 0))
    assert measures.conditional_acceptance(delta) == (0.0, None)


def test_steps_without_a_draft_lower_coverage_and_tokens_per_step():
    # acceptance 49 in the one round that drafted, 150 plain steps beside it
    delta = CountersDelta(drafts=1, accepted_tokens=48, plain_steps=149)
    assert measures.acceptance_length(delta) == 49.0
    assert measures.draft_coverage(delta) == pytest.approx(1 / 150)
    assert measures.tokens_per_step(delta, tokens=199, requests=1) == pytest.approx(1.32)


def test_steps_that_nobody_counted_are_no_figure():
    # one round that drafted 48 of 199 tokens: without the 149 plain steps it would be 198 per step
    delta = CountersDelta(drafts=1, accepted_tokens=48)
    assert measures.tokens_per_step(delta, tokens=199, requests=1) is None
    assert measures.token_identity_residual(delta, tokens=199, requests=1) is None


def test_plain_steps_follow_from_the_passes_of_requests_that_ran_alone():
    # llama.cpp b11434: 120 tokens, 45 passes, one of them the prompt's, 43 rounds, 75 accepted
    counted = CountersDelta(drafts=43, accepted_tokens=75, decode_calls=45)
    delta = measures.with_plain_steps(counted, requests=1)
    assert delta.plain_steps == 1
    assert measures.token_identity_residual(delta, tokens=120, requests=1) == 0
    assert measures.draft_coverage(delta) == pytest.approx(43 / 44)
    assert measures.tokens_per_step(delta, tokens=120, requests=1) == pytest.approx(119 / 44)


def test_counted_plain_steps_are_not_derived_again():
    counted = CountersDelta(drafts=3, plain_steps=2, decode_calls=99)
    assert measures.with_plain_steps(counted, requests=1) is counted
    without_rounds = CountersDelta(drafts=None, decode_calls=9)
    assert measures.with_plain_steps(without_rounds, requests=1).plain_steps is None


def test_the_engines_own_rate_counts_first_tokens_without_their_time():
    delta = CountersDelta(generation_tokens=512, generation_s=16.0)
    assert measures.engine_decode_rate(delta) == 32.0
    assert measures.engine_decode_rate(replace(delta, generation_s=None)) is None
    assert measures.engine_decode_rate(replace(delta, generation_s=0.0)) is None


def test_no_draft_is_no_acceptance_length():
    delta = CountersDelta(drafts=0, draft_tokens=0, accepted_tokens=0, accepted_at=(0,))
    assert measures.acceptance_length(delta) is None
    assert measures.acceptance_rate(delta) is None
    assert measures.acceptance_at_position(delta) is None


def test_a_series_that_appears_counts_from_zero():
    after = replace(NOTHING, drafts=40, draft_tokens=280, accepted_tokens=100, accepted_at=(60, 40))
    delta = measures.counters_delta(NOTHING, after)
    assert isinstance(delta, CountersDelta)
    assert measures.acceptance_length(delta) == 3.5
    assert delta.accepted_at == (60, 40)
    assert delta.trimmed_tokens is None


def test_a_reset_is_no_delta_although_its_quotient_looks_plausible():
    before = replace(NOTHING, drafts=1000, accepted_tokens=2500)
    after = replace(NOTHING, drafts=50, accepted_tokens=120)  # 1 + 2380/950 would be 3.51
    delta = measures.counters_delta(before, after)
    assert isinstance(delta, NotMeasured)
    assert delta.reason == "counter_reset"
    assert "1000" in delta.message
    assert "50" in delta.message


def test_a_series_that_vanishes_is_a_reset():
    delta = measures.counters_delta(replace(NOTHING, drafts=3), NOTHING)
    assert isinstance(delta, NotMeasured)
    assert delta.reason == "counter_reset"


def test_another_process_is_no_delta_although_every_counter_rose():
    before = replace(NOTHING, drafts=1, process_start_s=100.0)
    after = replace(NOTHING, drafts=9, process_start_s=107.5)
    delta = measures.counters_delta(before, after)
    assert isinstance(delta, NotMeasured)
    assert delta.reason == "restart"


def test_a_second_model_on_the_page_is_no_delta():
    before = replace(NOTHING, drafts=1, labels=("m",))
    after = replace(NOTHING, drafts=9, labels=("m", "other"))
    delta = measures.counters_delta(before, after)
    assert isinstance(delta, NotMeasured)
    assert delta.reason == "foreign_label"


def test_a_missing_snapshot_is_unavailable():
    delta = measures.counters_delta(NOTHING, None)
    assert isinstance(delta, NotMeasured)
    assert delta.reason == "unavailable"


def test_deltas_are_pooled_before_dividing():
    rows = [CountersDelta(drafts=d, accepted_tokens=a) for d, a in [(10, 10), (30, 120), (60, 60)]]
    # the mean of the three quotients would be 3.0
    assert measures.acceptance_length(measures.pooled(rows)) == 2.9


def test_pooling_keeps_what_is_unknown_unknown():
    rows = [CountersDelta(drafts=1, accepted_at=(1,)), CountersDelta(accepted_at=(2, 1))]
    assert measures.pooled(rows).drafts is None
    assert measures.pooled(rows).accepted_at == (3, 1)
    assert measures.pooled([]) == CountersDelta()


@given(st.lists(st.integers(0, 7), min_size=1, max_size=50))
def test_the_identity_holds_for_any_rounds(accepted):
    delta = CountersDelta(
        drafts=len(accepted), accepted_tokens=sum(accepted), trimmed_tokens=0, plain_steps=0
    )
    tokens = 1 + sum(a + 1 for a in accepted)
    assert measures.token_identity_residual(delta, tokens, requests=1) == 0
