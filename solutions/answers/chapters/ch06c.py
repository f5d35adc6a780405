"""Chapter 06c: the planner, a block's halves, and a plan for a card."""

from solutions.answers import right, wrong

FILLINGS = {
    "best": {
        "takes_any_room": wrong(
            "one is dropped: 1 must run again, but you have 0",
            *("if room < 0:\n        return math.inf, ()\n    if", "if"),
        ),
        "never_drops_up_to_the_end": wrong(
            "one is dropped: 1 must run again, but you have inf", "end + 1):", "end):"
        ),
        "holds_no_boundary": wrong(
            "exceed a room of 4: inf must run again, but you have 1",
            *("room - chain.inputs[split]", "room"),
        ),
        "counts_the_blocks": wrong(
            "forward takes 7: 7 must run again, but you have 1",
            *("sum(chain.forward[start:split])", "split - start"),
        ),
        "holds_the_boundary_while_the_segment_runs_again": wrong(
            "whole room, here 5: 1 must run again, but you have inf",
            *("split - 1, room)", "split - 1, room - chain.inputs[split])"),
        ),
        "holds_the_input_of_the_dropped_block": wrong(
            "inputs[split] is held, here 1: 1 must run again, but you have inf",
            *("room - chain.inputs[split]", "room - chain.inputs[start]"),
        ),
        "drops_without_a_forward": wrong(
            "one is dropped: 1 must run again, but you have 0",
            *("first + later", "later"),
        ),
        "drops_one_block_at_a_time": wrong(
            "are enough, but you have", "range(start + 1, end + 1)", "range(start + 1, end + 1)[:1]"
        ),
        "compares_schedules": wrong("'<' not supported", ", key=lambda way: way[0])", ")"),
        "returns_the_cost_alone": wrong(
            "cannot unpack non-iterable float",
            *("return math.inf, ()", "return math.inf"),
        ),
        "loses_the_segment_around_its_blocks": wrong(
            "room 6: your schedule (0, 1) takes 8 units", "(segment, *rest)", "(*segment, *rest)"
        ),
        "numbers_each_segment_from_0": wrong(
            "The tree has the stages [0, 0]", "(start, *rest)", "(0, *rest)"
        ),
        "loses_the_rest": wrong("The tree has the stages [0];", "(segment, *rest)", "(segment,)"),
        "goes_from_the_longest_segment_down": right(
            "range(start + 1, end + 1)", "range(end, start, -1)"
        ),
        "keeps_the_cheapest_so_far": right(
            *("ways = [(cost, (start, *rest))]", "found = cost, (start, *rest)"),
            *(
                "ways.append((first + later + again, (segment, *rest)))",
                "way = first + later + again, (segment, *rest)\n"
                "        found = way if way[0] < found[0] else found",
            ),
            *("min(ways, key=lambda way: way[0])", "found"),
        ),
    },
    "in-halves": {
        "attention_after_the_mlp": wrong(
            "After block 0 the output is different",
            *("block.norm_1, block.attention", "block.norm_1, block.mlp"),
            *("block.norm_2, block.mlp", "block.norm_2, block.attention"),
        ),
        "forgets_the_mlp": wrong(
            "3 blocks have 6 halves, not 3",
            *("        halves.append(Half(block.norm_2, block.mlp))\n", ""),
        ),
        "returns_a_list": wrong(
            "return a list, but an nn.ModuleList is needed", "nn.ModuleList(halves)", "halves"
        ),
        "takes_one_norm_twice": wrong("are in no half", "block.norm_2", "block.norm_1"),
    },
    "cheapest": {
        "leaves_out_an_exact_fit": wrong(
            "fills a room of 15 exactly: 0 runs again, not 8", "units <= room", "units < room"
        ),
        "ignores_the_room": wrong("takes 15 units", "units <= room", "True"),
        "gives_each_block_the_whole_room": wrong(
            "takes 2 units", "num_blocks - 1, room - units)", "num_blocks - 1, room)"
        ),
        "goes_by_the_room_left_alone": wrong(
            "2 blocks, room 6: 28 is enough, but yours runs 36 again",
            "return min(plans)",
            "return plans[1] if room < 10 and len(plans) > 1 else min(plans)",
        ),
        "forgets_its_own_forward": wrong("but you say 0", "runs + others", "others"),
        "takes_the_way_with_most_units": wrong(
            "2 blocks, room 15: 16 is enough", "return min(plans)", "return plans[-1]"
        ),
        "loses_its_own_way": wrong("your plan has 0 ways", "(way, *ways)", "ways"),
        "treats_all_blocks_alike": wrong(
            "2 blocks, room 1: 38 is enough, but yours runs 40 again",
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
