"""Forward peak, backward peak and samples per second of a step."""

import statistics

from solutions.answers import right, solved, wrong

resets_once = wrong(
    "Your number includes forward's peak",
    "        gpu.reset_peak_memory_stats()\n        loss.",
    "        loss.",
)
reads_both_at_the_end = wrong(
    "It is the peak of forward and backward",
    "        gpu.reset_peak_memory_stats()\n        loss.",
    "        loss.",
    '        peaks["forward_bytes"] = gpu.max_memory_allocated()\n',
    "",
    'peaks["backward',
    'peaks["forward_bytes"] = peaks["backward',
)
never_resets = wrong(
    "It is the peak of the whole step",
    "        gpu.reset_peak_memory_stats()\n        loss =",
    "        loss =",
    "        gpu.reset_peak_memory_stats()\n        loss.",
    "        loss.",
)
reads_what_is_there = wrong(
    "It is what is allocated after forward",
    '["forward_bytes"] = gpu.max_memory',
    '["forward_bytes"] = gpu.memory',
)
reads_what_backward_left = wrong(
    "It is what is allocated after backward",
    '["backward_bytes"] = gpu.max_memory',
    '["backward_bytes"] = gpu.memory',
)
wipes_before_it_clears = wrong(
    "You reset the peak before zero_grad",
    "        optimizer.zero_grad()\n",
    "",
    "stats()\n        loss =",
    "stats()\n        optimizer.zero_grad()\n        loss =",
)
subtracts_what_lay_there = wrong(
    "here, return the whole peak.",
    "        optimizer.zero",
    "        there = gpu.memory_allocated()\n        optimizer.zero",
    "max_memory_allocated()\n        gpu",
    "max_memory_allocated() - there\n        gpu",
    "allocated()\n        optimizer.step",
    "allocated() - there\n        optimizer.step",
)
subtracts_what_stays = wrong(
    "here, return the whole peak, parameters and optimizer state",
    "zero_grad()\n",
    "zero_grad()\n        there = gpu.memory_allocated()\n",
    "max_memory_allocated()\n        gpu",
    "max_memory_allocated() - there\n        gpu",
    "allocated()\n        optimizer.step",
    "allocated() - there\n        optimizer.step",
)
times_three_whatever_was_asked = wrong(
    "4 steps ran, but one of warm-up and", "repeats=repeats", "repeats=3"
)
starts_cold = wrong("5 steps ran, but one of warm-up and", "warmup=1", "warmup=0")
reads_the_first_step = wrong(
    "It is a first step's",
    "    seconds =",
    "    one_step()\n    first = dict(peaks)\n    seconds =",
    "**peaks",
    "**first",
)
never_zeroes = wrong(
    "The last step's gradients are still there", "        optimizer.zero_grad()\n", ""
)
holds_the_last_loss = wrong(
    "The loss of the step before is still held",
    "peaks = {}",
    "peaks, loss = {}, None",
    "        loss =",
    "        nonlocal loss\n        loss =",
)
takes_the_mean = wrong(
    "One slow step changed it a lot: take",
    "step_seconds(one_step, gpu, clock, warmup=1, repeats=repeats)",
    "statistics.mean(\n"
    "        step_seconds(one_step, gpu, clock, warmup=place == 0, repeats=1)\n"
    "        for place in range(repeats)\n"
    "    )",
)
turns_the_rate_round = wrong(
    "It is seconds per sample", "num_samples / seconds", "seconds / num_samples"
)
forgets_the_batch = wrong("It is steps per second", "num_samples / seconds", "1 / seconds")
gives_a_tuple = wrong(
    "a dict with the keys forward_bytes",
    '{**peaks, "samples_per_second": num_samples / seconds}',
    "(*peaks.values(), num_samples / seconds)",
)
never_waits = wrong(
    "It is none of the usual faults. Run it",
    "step_seconds(one_step, gpu",
    "step_seconds(one_step, type('Gpu', (), {'synchronize': lambda: None})",
)
asks_the_meter = wrong(
    "memory.predict and memory.capped count as the oracle does",
    "    seconds =",
    "    return memory.measure(one_step).phases\n    seconds =",
)


class Step:
    """A step in parts, and the highest mark of each."""

    def __init__(self, loss_fn, optimizer, gpu):
        self.loss_fn, self.optimizer, self.gpu = loss_fn, optimizer, gpu

    def peak(self, part):
        self.gpu.reset_peak_memory_stats()
        result = part()
        return result, self.gpu.max_memory_allocated()

    def before_the_update(self):
        self.optimizer.zero_grad()
        loss, self.forward = self.peak(self.loss_fn)
        _, self.backward = self.peak(loss.backward)

    def __call__(self):
        self.before_the_update()
        self.optimizer.step()

    def profile(self, rate):
        peaks = {"forward_bytes": self.forward, "backward_bytes": self.backward}
        return {**peaks, "samples_per_second": rate}


@wrong("You left out the update")
def leaves_the_update_out_of_the_time(loss_fn, optimizer, gpu, clock, *, num_samples, repeats):
    step, times = Step(loss_fn, optimizer, gpu), []
    for _ in range(repeats + 1):
        gpu.synchronize()
        start = clock()
        step.before_the_update()
        gpu.synchronize()
        times.append(clock() - start)
        optimizer.step()
    return step.profile(num_samples / statistics.median(times[1:]))


@wrong("Work of the warm-up was still in the queue")
def never_waits_for_the_warm_up(loss_fn, optimizer, gpu, clock, *, num_samples, repeats):
    step, times = Step(loss_fn, optimizer, gpu), []
    step()
    for _ in range(repeats):
        start = clock()
        step()
        gpu.synchronize()
        times.append(clock() - start)
    return step.profile(num_samples / statistics.median(times))


@right
def in_parts(loss_fn, optimizer, gpu, clock, *, num_samples, repeats):
    step = Step(loss_fn, optimizer, gpu)
    seconds = solved("lab02").step_seconds(step, gpu, clock, warmup=1, repeats=repeats)
    return step.profile(num_samples / seconds)


@right
def bytes_first_and_seconds_later(loss_fn, optimizer, gpu, clock, *, num_samples, repeats):
    def plainly():
        optimizer.zero_grad()
        loss_fn().backward()
        optimizer.step()

    seconds = solved("lab02").step_seconds(plainly, gpu, clock, warmup=1, repeats=repeats)
    step = Step(loss_fn, optimizer, gpu)
    step()
    return step.profile(num_samples / seconds)
