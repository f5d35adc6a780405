"""Chapter 14c: the first rung that fits, and the peaks on paper."""

from solutions.answers import right, wrong

FILLINGS = {
    "first-fit": {
        "finds_the_last_rung_for_none": wrong(
            "under 5: you find 5, but the rung is 6", "default=len(peaks)", "default=5"
        ),
        "finds_the_last_that_fits": wrong(
            "under 60: you find 5, but the rung is 0", "min(fitting", "max(fitting"
        ),
        "counts_those_that_do_not_fit": wrong(
            "under 42: you find 3.0",
            *("min(fitting, default=len(peaks))", "float(len(peaks) - len(fitting))"),
        ),
        "gives_the_peak": wrong(
            "under 60: you find 50, but the rung is 0",
            *("[rung for rung, peak", "[peak for rung, peak"),
            *("min(", "max("),
        ),
        "looks_at_the_passes_alone": wrong(
            "under 35: you find 2,", *('["peak_bytes"]', '["phases"]["backward"]')
        ),
        "looks_at_the_update_alone": wrong(
            "under 42: you find 0,", *('["peak_bytes"]', '["phases"]["optimizer"]')
        ),
        "searches_as_if_sorted": wrong(
            "under 42: you find 4,",
            *(
                "min(fitting, default=len(peaks))",
                "__import__('bisect').bisect(peaks, -budget_bytes)",
            ),
            *('report_of(model, step)["peak_bytes"]', '-report_of(model, step)["peak_bytes"]'),
        ),
        "compares_the_wrong_way": wrong("under 60: you find 6,", "peak < budget", "peak > budget"),
        "counts_from_one": wrong(
            "under 60: you find 1,", "enumerate(peaks)", "enumerate(peaks, 1)"
        ),
        "finds_none_for_none": wrong("under 5: you find None", "len(peaks)", "None"),
        "lets_a_peak_fill_the_card": right("peak < budget", "peak <= budget"),
        "looks_at_both_peaks": right(
            *('report_of(model, step)["peak_bytes"]', "max(two_peaks(model, step))")
        ),
    },
    "on-paper": {
        "gradients_always_wait": wrong(
            "(0.8, 0, 1, 1, 1), 'smaller micro-batch': 0.90", " * (samples > 1)", ""
        ),
        "gradients_never_wait": wrong(
            "(0.8, 0, 8, 1, 1), 'smaller micro-batch': 0.80", " * (samples > 1)", " * 0"
        ),
        "forgets_the_copies_beside_checkpoints": wrong(
            "(0.8, 0, 8, 1, 1), 'checkpoint each block': 0.80",
            *("checkpointed = copies + waiting", "checkpointed = waiting"),
        ),
        "forgets_the_updates_temporaries": wrong(
            "'as it is': 0.80 should be 1.00",
            "max(held + batch, states * 20",
            "max(held + batch, states * 16",
        ),
        "forgets_the_gradients_of_the_last_update": wrong(
            "(0.8, 0, 1, 1, 1), '8-bit states': 0.40", "states * 10 / 16", "states * 6 / 16"
        ),
        "runs_the_whole_batch_at_once": wrong(
            "(0, 1.6, 8, 0.5, 0.25), 'smaller micro-batch': 0.80", "cast * sample", "cast * batch"
        ),
        "adds_the_two_peaks": wrong(
            "'fused kernels': 1.50 should be 0.80",
            "max(cast_batch, states),",
            "cast_batch + states,",
        ),
        "leaves_out_a_rung": wrong(
            "a peak for each of six rungs",
            *("        max(states * 6 / 16 + checkpointed, states * 10 / 16),\n", ""),
        ),
        "gives_an_array": right(
            *("    return (", "    return np.array(("),
            *("states * 10 / 16),\n    )", "states * 10 / 16),\n    ))"),
        ),
    },
}
