"""Chapter 06c: the planner, its schedule, a block's halves, and a plan for a card."""

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
    "cheapest": {
        "ignores_the_room": wrong("takes 15 units", "units <= room", "True"),
        "gives_each_block_the_whole_room": wrong(
            "takes 2 units", "num_blocks - 1, room - units)", "num_blocks - 1, room)"
        ),
        "goes_by_the_room_left_alone": wrong(
            "2 blocks, room 6: 28 is enough, and yours runs 36 again",
            "return min(plans)",
            "return plans[1] if room < 10 and len(plans) > 1 else min(plans)",
        ),
        "forgets_its_own_forward": wrong("and you say 0", "runs + others", "others"),
        "takes_the_way_with_most_units": wrong(
            "2 blocks, room 15: 16 is enough", "return min(plans)", "return plans[-1]"
        ),
        "loses_its_own_way": wrong("your plan has 0 ways", "(way, *ways)", "ways"),
        "treats_all_blocks_alike": wrong(
            "2 blocks, room 1: 38 is enough, and yours runs 40 again",
            *(
                "others, ways = cheapest(num_blocks - 1, room - units)",
                "others, ways = (num_blocks - 1) * runs, (num_blocks - 1) * (way,)",
            ),
            *("if units <= room", "if num_blocks * units <= room"),
        ),
        "begins_with_the_dearest": right("WAYS.items()", "reversed(WAYS.items())"),
        "compares_what_runs_again_alone": right(
            "return min(plans)", "return min(plans, key=lambda plan: plan[0])"
        ),
    },
}
