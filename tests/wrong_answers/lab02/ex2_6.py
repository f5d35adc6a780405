"""Forward peak, backward peak and samples per second of a step."""

import statistics

from tutorial_lib import memory
from wrong_answers import right, solved, wrong


class Profile:
    """The right profile, taken apart so that one part can go wrong at a time."""

    def __init__(self, loss_fn, optimizer, gpu, clock, *, num_samples, repeats):
        self.loss_fn, self.optimizer, self.gpu, self.clock = loss_fn, optimizer, gpu, clock
        self.num_samples, self.repeats = num_samples, repeats
        self.forward = self.backward = 0

    def zero(self):
        self.optimizer.zero_grad()

    def reset(self):
        self.gpu.reset_peak_memory_stats()

    def peak(self):
        return self.gpu.max_memory_allocated()

    def step(self):
        self.zero()
        self.reset()
        loss = self.loss_fn()
        self.forward = self.peak()
        self.between()
        loss.backward()
        self.backward = self.peak()
        self.optimizer.step()

    def between(self):
        self.reset()

    def seconds(self, warmup=1):
        return solved("lab02").step_seconds(
            self.step, self.gpu, self.clock, warmup=warmup, repeats=self.repeats
        )

    def rate(self):
        return self.num_samples / self.seconds()

    def result(self):
        rate = self.rate()
        names = ("forward_bytes", "backward_bytes", "samples_per_second")
        return dict(zip(names, (self.forward, self.backward, rate), strict=True))


def profiled(kind, args, options):
    return kind(*args, **options).result()


@wrong("Forward's peak is in it")
def resets_once(*args, **options):
    class Once(Profile):
        def between(self):
            pass

    return profiled(Once, args, options)


@wrong("It is the peak of forward and backward")
def reads_both_at_the_end(*args, **options):
    class Late(Profile):
        def between(self):
            pass

        def result(self):
            return super().result() | {"forward_bytes": self.backward}

    return profiled(Late, args, options)


@wrong("It is the peak of the whole step")
def never_resets(*args, **options):
    class Never(Profile):
        def reset(self):
            pass

    return profiled(Never, args, options)


@wrong("It is what is there when forward is over")
def reads_what_is_there(*args, **options):
    class There(Profile):
        def peak(self):
            return self.gpu.memory_allocated()

    return profiled(There, args, options)


@wrong("It is what is there when backward is over")
def reads_what_backward_left(*args, **options):
    class There(Profile):
        def step(self):
            self.zero()
            self.reset()
            loss = self.loss_fn()
            self.forward = self.peak()
            loss.backward()
            self.backward = self.gpu.memory_allocated()
            self.optimizer.step()

    return profiled(There, args, options)


@wrong("The mark was wiped before zero_grad")
def wipes_before_it_clears(*args, **options):
    class Early(Profile):
        def zero(self):
            self.reset()
            super().zero()
            self.reset = lambda: vars(self).pop("reset")

    return profiled(Early, args, options)


@wrong("here the whole is wanted.")
def subtracts_what_lay_there(*args, **options):
    class Above(Profile):
        def zero(self):
            self.there = self.gpu.memory_allocated()
            super().zero()

        def peak(self):
            return super().peak() - self.there

    return profiled(Above, args, options)


@wrong("here the whole is wanted, parameters and optimizer state")
def subtracts_what_stays(*args, **options):
    class Above(Profile):
        def zero(self):
            super().zero()
            self.there = self.gpu.memory_allocated()

        def peak(self):
            return super().peak() - self.there

    return profiled(Above, args, options)


@wrong("4 steps ran, and one of warm-up and")
def times_three_whatever_was_asked(*args, repeats, **options):
    return profiled(Profile, args, {**options, "repeats": 3})


@wrong("5 steps ran, and one of warm-up and")
def starts_cold(*args, **options):
    class Cold(Profile):
        def seconds(self):
            return super().seconds(warmup=0)

    return profiled(Cold, args, options)


@wrong("It is a first step's")
def reads_the_first_step(*args, **options):
    class First(Profile):
        def seconds(self):
            self.step()
            peaks = self.forward, self.backward
            seconds = super().seconds()
            self.forward, self.backward = peaks
            return seconds

    return profiled(First, args, options)


@wrong("The last step's gradients are still there")
def never_zeroes(*args, **options):
    class Pile(Profile):
        def zero(self):
            pass

    return profiled(Pile, args, options)


@wrong("The loss of the step before is still there")
def holds_the_last_loss(loss_fn, optimizer, gpu, clock, *, num_samples, repeats):
    times = []
    for _ in range(repeats + 1):
        gpu.synchronize()
        start = clock()
        optimizer.zero_grad()
        gpu.reset_peak_memory_stats()
        loss = loss_fn()
        forward = gpu.max_memory_allocated()
        gpu.reset_peak_memory_stats()
        loss.backward()
        backward = gpu.max_memory_allocated()
        optimizer.step()
        gpu.synchronize()
        times.append(clock() - start)
    rate = num_samples / statistics.median(times[1:])
    return {"forward_bytes": forward, "backward_bytes": backward, "samples_per_second": rate}


@wrong("The update is not in it")
def leaves_the_update_out_of_the_time(*args, **options):
    class Short(Profile):
        def seconds(self):
            times = []
            for _ in range(self.repeats + 1):
                self.gpu.synchronize()
                start = self.clock()
                self.zero()
                self.reset()
                loss = self.loss_fn()
                self.forward = self.peak()
                self.reset()
                loss.backward()
                self.backward = self.peak()
                self.gpu.synchronize()
                times.append(self.clock() - start)
                self.optimizer.step()
                del loss
            return statistics.median(times[1:])

    return profiled(Short, args, options)


@wrong("A slow step has moved it: take")
def takes_the_mean(*args, **options):
    class Mean(Profile):
        def seconds(self):
            self.step()
            self.gpu.synchronize()
            start = self.clock()
            for _ in range(self.repeats):
                self.step()
            self.gpu.synchronize()
            return (self.clock() - start) / self.repeats

    return profiled(Mean, args, options)


@wrong("It is seconds a sample")
def turns_the_rate_round(*args, **options):
    class Round(Profile):
        def rate(self):
            return 1 / super().rate()

    return profiled(Round, args, options)


@wrong("It is steps a second")
def forgets_the_batch(*args, **options):
    class Steps(Profile):
        def rate(self):
            return 1 / self.seconds()

    return profiled(Steps, args, options)


@wrong("a dict with the keys forward_bytes")
def gives_a_tuple(*args, **options):
    return tuple(Profile(*args, **options).result().values())


@wrong("It is none of the usual faults. Run it")
def never_waits(*args, **options):
    class Hasty(Profile):
        def seconds(self):
            self.step()
            times = []
            for _ in range(self.repeats):
                start = self.clock()
                self.step()
                times.append(self.clock() - start)
            return statistics.median(times)

    return profiled(Hasty, args, options)


@wrong("memory.predict and memory.capped count as the oracle does")
def asks_the_meter(*args, **options):
    return memory.measure(Profile(*args, **options).step).phases


@right
def in_parts(*args, **options):
    return profiled(Profile, args, options)


@right
def bytes_first_and_seconds_later(loss_fn, optimizer, gpu, clock, *, num_samples, repeats):
    def step():
        optimizer.zero_grad()
        loss_fn().backward()
        optimizer.step()

    seconds = solved("lab02").step_seconds(step, gpu, clock, warmup=1, repeats=repeats)
    peaks = Profile(loss_fn, optimizer, gpu, clock, num_samples=num_samples, repeats=1)
    peaks.step()
    return {
        "forward_bytes": peaks.forward,
        "backward_bytes": peaks.backward,
        "samples_per_second": num_samples / seconds,
    }
