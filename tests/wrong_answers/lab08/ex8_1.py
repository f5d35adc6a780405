"""What an update draws."""

import random

import numpy as np
import torch

from wrong_answers import right, wrong


def drawn(images, num, scheduler, seed, **parts):
    """The solution, some of whose draws are replaced."""
    g = torch.Generator().manual_seed(seed)
    high = scheduler.config.num_train_timesteps
    rows = parts.get("rows", lambda g: torch.randint(len(images), (num,), generator=g))(g)
    times = parts.get("times", lambda g: torch.randint(high, (num,), generator=g))(g)
    shape = (num, *images.shape[1:])
    noise = parts.get("noise", lambda g: torch.randn(shape, generator=g))(g)
    return scheduler.add_noise(images[rows], noise, times), times, noise


@wrong("the global random state of PyTorch")
def seeds_everything(images, num, update, scheduler):
    torch.manual_seed(update)
    shape = (num, *images.shape[1:])
    noise, times = torch.randn(shape), torch.randint(scheduler.config.num_train_timesteps, (num,))
    return (
        scheduler.add_noise(images[torch.randint(len(images), (num,))], noise, times),
        times,
        noise,
    )


@wrong("one was asked for that is not there")
def a_hundred_times(images, num, update, scheduler):
    def times(g):
        return torch.randint(100, (num,), generator=g)

    return drawn(images, num, scheduler, update, times=times)


@wrong("randperm and a slice do not")
def draws_without_repetition(images, num, update, scheduler):
    def rows(g):
        return torch.randperm(len(images), generator=g)[:num]

    return drawn(images, num, scheduler, update, rows=rows)


LASTING = torch.Generator().manual_seed(0)


@wrong("was drawn twice and came out differently")
def one_generator_for_all(images, num, update, scheduler):
    seed = int(torch.randint(2**31, (), generator=LASTING))
    return drawn(images, num, scheduler, seed)


@wrong("two updates drew the same, 1 apart")
def one_seed_for_all(images, num, update, scheduler):
    return drawn(images, num, scheduler, 0)


@wrong("all images have one time")
def one_time_for_all(images, num, update, scheduler):
    def times(g):
        return torch.randint(scheduler.config.num_train_timesteps, (1,), generator=g).expand(num)

    # drawn by a seed with another time in the next update
    seed = update
    while int(times(torch.Generator().manual_seed(seed))[0]) != update % 5:
        seed += 1000
    return drawn(
        images, num, scheduler, seed, rows=lambda g: rows_after(g, images, num), times=times
    )


def rows_after(g, images, num):
    state = g.get_state()
    rows = torch.randint(len(images), (num,), generator=g)
    g.set_state(state)
    return rows


@wrong("the times run from 1")
def never_the_first_time(images, num, update, scheduler):
    high = scheduler.config.num_train_timesteps
    return drawn(
        images,
        num,
        scheduler,
        update,
        times=lambda g: torch.randint(1, high, (num,), generator=g),
    )


@wrong("have the shape (400,) and type torch.float32")
def times_between_zero_and_one(images, num, update, scheduler):
    noisy, times, noise = drawn(images, num, scheduler, update)
    return noisy, times / 1000, noise


@wrong("torch.randn")
def uniform_noise(images, num, update, scheduler):
    shape = (num, *images.shape[1:])
    return drawn(
        images, num, scheduler, update, noise=lambda g: torch.rand(shape, generator=g) * 2 - 1
    )


@wrong("one and the same noise")
def one_noise_for_all(images, num, update, scheduler):
    shape = (1, *images.shape[1:])
    return drawn(
        images,
        num,
        scheduler,
        update,
        noise=lambda g: torch.randn(shape, generator=g).repeat(num, 1, 1, 1),
    )


@wrong("with the very noise that is returned")
def returns_other_noise(images, num, update, scheduler):
    noisy, times, noise = drawn(images, num, scheduler, update)
    return noisy, times, noise.flip(0)


@wrong("were ever chosen")
def the_first_images(images, num, update, scheduler):
    return drawn(
        images,
        num,
        scheduler,
        update,
        rows=lambda g: torch.randint(len(images) // 2, (num,), generator=g),
    )


@wrong("the global random state of Python")
def seeds_python(images, num, update, scheduler):
    random.seed(update)
    rows = torch.tensor(random.choices(range(len(images)), k=num))
    return drawn(images, num, scheduler, update, rows=lambda g: rows)


@wrong("the global random state of NumPy")
def seeds_numpy(images, num, update, scheduler):
    np.random.seed(update)
    rows = torch.from_numpy(np.random.randint(0, len(images), num))
    return drawn(images, num, scheduler, update, rows=lambda g: rows)


@wrong("and type torch.int32")
def times_of_four_bytes(images, num, update, scheduler):
    noisy, times, noise = drawn(images, num, scheduler, update)
    return noisy, times.int(), noise


@wrong("two updates drew the same, 1000 apart")
def ten_seeds(images, num, update, scheduler):
    return drawn(images, num, scheduler, update % 10)


@wrong("numbers of noise only")
def one_number_for_each_image(images, num, update, scheduler):
    def noise(g):
        return torch.randn(num, 1, 1, 1, generator=g).expand(num, *images.shape[1:])

    return drawn(images, num, scheduler, update, noise=noise)


@wrong("the images come in their order")
def images_in_order(images, num, update, scheduler):
    rows = (update * num + torch.arange(num)) % len(images)
    return drawn(images, num, scheduler, update, rows=lambda g: rows)


@wrong("does each draw begin a generator of the same seed?")
def one_seed_for_each_draw(images, num, update, scheduler):
    high = scheduler.config.num_train_timesteps

    def times(g):
        return torch.randint(high, (num,), generator=g.manual_seed(update))

    return drawn(images, num, scheduler, update, times=times)


@right
def from_a_permuted_order(images, num, update, scheduler):
    g = torch.Generator().manual_seed(12345 + update)
    noise = torch.empty(num, *images.shape[1:]).normal_(generator=g)
    high = scheduler.config.num_train_timesteps
    times = (torch.rand(num, generator=g) * high).long()
    rows = torch.multinomial(torch.ones(len(images)), num, replacement=True, generator=g)
    share = scheduler.alphas_cumprod[times].view(-1, 1, 1, 1)
    return share.sqrt() * images[rows] + (1 - share).sqrt() * noise, times, noise


@right
def under_a_fork_of_the_global_state(images, num, update, scheduler):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(update)
        noise = torch.randn(num, *images.shape[1:])
        times = torch.randint(0, scheduler.config.num_train_timesteps, (num,))
        rows = torch.randint(len(images), (num,))
    return [scheduler.add_noise(images[rows], noise, times), times, noise]
