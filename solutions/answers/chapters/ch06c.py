"""Chapter 06c: the planner, its schedule, Revolve's formula, and a block's halves."""

from solutions.answers import right, wrong

FILLINGS = {
    "again": {
        "takes_any_room": wrong(
            "one is dropped: 1 must run again, and you have 0",
            *("if room < 0:\n        return math.inf\n    if", "if"),
        ),
        "never_drops_up_to_the_end": wrong(
            "one is dropped: 1 must run again, and you have inf", "end + 1):", "end):"
        ),
        "holds_no_boundary": wrong(
            "exceed a room of 4: inf must run again, and you have 1",
            *("room - chain.inputs[split]", "room"),
        ),
        "counts_the_blocks": wrong(
            "forward takes 7: 7 must run again, and you have 1",
            *("sum(chain.forward[start:split])", "split - start"),
        ),
        "holds_the_boundary_while_the_segment_runs_again": wrong(
            "whole room, here 5: 1 must run again, and you have inf",
            *("split - 1, room)", "split - 1, room - chain.inputs[split])"),
        ),
        "drops_without_a_forward": wrong(
            "one is dropped: 1 must run again, and you have 0",
            *("first + later", "later"),
        ),
        "drops_one_block_at_a_time": wrong(
            "Blocks that save (", "range(start + 1, end + 1)", "range(start + 1, end + 1)[:1]"
        ),
        "goes_from_the_longest_segment_down": right(
            "range(start + 1, end + 1)", "range(end, start, -1)"
        ),
        "asks_for_the_room_first": right(
            "return min(ways)", "return min([way for way in ways if way >= 0])"
        ),
    },
    "rule": {
        "counts_the_first_boundary": wrong(
            "2 boundaries and 4 * 5, and not 23", "len(starts) - 1", "len(starts)"
        ),
        "recomputes_the_last_segment_too": wrong(
            "8 run again, not 12", "room, starts[-1]", "room, num_blocks"
        ),
        "keeps_one_block_inside": wrong(
            "2 boundaries and 4 * 5, and not 7", "saved * length", "saved"
        ),
        "counts_segments": right("starts[-1]", "num_blocks - length"),
    },
    "binomial": {
        "forgets_the_first_pass": wrong(
            "1 blocks, 1 boundaries: the search finds 1, and you 0",
            *("return num_blocks + times", "return times"),
        ),
        "repeats_once_too_little": wrong(
            "2 blocks, 1 boundaries: the search finds 3, and you 2",
            *("slots) < num_blocks", "slots) < num_blocks - 1"),
        ),
        "chooses_the_wrong_number": wrong(
            "2 blocks, 1 boundaries: the search finds 3, and you 4", "slots + 1)", "slots + 2)"
        ),
        "counts_by_the_boundaries": wrong(
            "6 blocks, 2 boundaries: the search finds 14, and you 10",
            *("math.comb(slots + times, slots) <", "math.comb(slots + times, 1) <"),
        ),
        "adds_the_last_term": wrong(
            "and you 5", "num_blocks - math.comb", "num_blocks + math.comb"
        ),
        "goes_on_where_it_is_equal": right("slots) < num_blocks", "slots) <= num_blocks"),
        "begins_with_one": right("times = 0", "times = 1"),
    },
    "schedule": {
        "loses_the_segment_around_its_blocks": wrong(
            "room 7: your schedule (0, 1) takes 8 units", "(segment, *", "(*segment, *"
        ),
        "drops_each_block": wrong(
            "((0,), 1) runs 1 forwards again, and 0 are enough",
            *("again(chain, start + 1, end, left) == best", "start == end"),
            *("inside == best", "inside >= best"),
        ),
        "gives_a_segment_the_room_that_is_left": wrong(
            "room 9: your schedule (",
            *(
                "segment = schedule(chain, start, split - 1, room)",
                "segment = schedule(chain, start, split - 1, left)",
            ),
        ),
        "numbers_each_segment_from_0": wrong(
            "stopped at ValueError", "return (start, *", "return (0, *"
        ),
        "drops_the_longest_segment": right("range(start + 1, end + 1)", "range(end, start, -1)"),
    },
    "in-halves": {
        "attention_after_the_mlp": wrong(
            "After block 0 the output is another one",
            *("block.norm_1, block.attention", "block.norm_1, block.mlp"),
            *("block.norm_2, block.mlp", "block.norm_2, block.attention"),
        ),
        "forgets_the_mlp": wrong(
            "3 blocks have 6 halves, and not 3",
            *("        halves.append(Half(block.norm_2, block.mlp))\n", ""),
        ),
        "returns_a_list": wrong(
            "return a list, and an nn.ModuleList is needed", "nn.ModuleList(halves)", "halves"
        ),
        "takes_one_norm_twice": wrong("are in no half", "block.norm_2", "block.norm_1"),
    },
    "plan-within": {
        "forgets_to_shift": wrong(
            "stopped at ValueError",
            "*shifted(schedule(chain, 0, 11, room))",
            "*schedule(chain, 0, 11, room)",
        ),
        "takes_any_plan": wrong("are allowed, and your plan has", "<= num_bytes", "> 0"),
        "takes_the_smallest": wrong(
            "time is enough, and yours takes", "plan.seconds)", "plan.peak_bytes)"
        ),
        "stops_at_the_first": wrong(
            "time is enough, and yours takes",
            *("min(fitting, key=lambda plan: plan.seconds)", "fitting[0]"),
        ),
        "takes_the_largest_room": right(
            "min(fitting, key=lambda plan: plan.seconds)", "fitting[-1]"
        ),
    },
}
