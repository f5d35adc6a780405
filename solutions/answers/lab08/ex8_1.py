"""What an update draws."""

import torch

from solutions.answers import right, wrong

seeds_everything = wrong(
    "the global random state of PyTorch", "torch.Generator().manual_seed", "torch.manual_seed"
)
puts_the_state_back_where_nothing_fails = wrong(
    "the draw failed, and the random state of PyTorch stayed moved",
    "    generator = torch.Generator().manual_seed(update)\n",
    "    state = torch.get_rng_state()\n    torch.manual_seed(update)\n",
    ", generator=generator)\n    times",
    ")\n    times",
    "(num,), generator=generator\n",
    "(num,)\n",
    ", generator=generator)\n    return",
    ")\n    torch.set_rng_state(state)\n    return",
)
a_hundred_times = wrong(
    "but you asked for one that isn't there", "scheduler.config.num_train_timesteps", "100"
)
draws_without_repetition = wrong(
    "randperm and a slice do not",
    "torch.randint(len(images), (num,), generator=generator)",
    "torch.randperm(len(images), generator=generator)[:num]",
)
one_generator_for_all = wrong(
    "was drawn twice and came out differently",
    "torch.Generator().manual_seed(update)",
    "vars(draw_update).setdefault('lasting', torch.Generator())",
)
one_seed_for_all = wrong("two updates drew the same, 1 apart", "seed(update)", "seed(0)")
one_time_for_all = wrong(
    "all images have the same time",
    "    noise =",
    "    times = torch.full((num,), update % 5)\n    noise =",
)
never_the_first_time = wrong("the times run from 1", "scheduler.config", "1, scheduler.config")
times_between_zero_and_one = wrong(
    "have the shape (400,) and type torch.float32", "times), times", "times), times / 1000"
)
uniform_noise = wrong(
    "torch.randn",
    "torch.randn((num, *images.shape[1:]), generator=generator)",
    "torch.rand((num, *images.shape[1:]), generator=generator) * 2 - 1",
)
one_noise_for_all = wrong(
    "all images got the same noise",
    "torch.randn((num, *images.shape[1:]), generator=generator)",
    "torch.randn((1, *images.shape[1:]), generator=generator).repeat(num, 1, 1, 1)",
)
returns_other_noise = wrong(
    "with the same noise that you return", "times), times, noise", "times), times, noise.flip(0)"
)
the_first_images = wrong("were ever chosen", "len(images),", "len(images) // 2,")
seeds_python = wrong(
    "the global random state of Python",
    "    times =",
    "    import random\n"
    "\n"
    "    random.seed(update)\n"
    "    rows = torch.tensor(random.choices(range(len(images)), k=num))\n"
    "    times =",
)
seeds_numpy = wrong(
    "the global random state of NumPy",
    "    times =",
    "    import numpy as np\n"
    "\n"
    "    np.random.seed(update)\n"
    "    rows = torch.from_numpy(np.random.randint(0, len(images), num))\n"
    "    times =",
)
times_of_four_bytes = wrong("and type torch.int32", "times), times", "times), times.int()")
ten_seeds = wrong("two updates drew the same, 1000 apart", "seed(update)", "seed(update % 10)")
one_number_for_each_image = wrong(
    "numbers of noise only",
    "torch.randn((num, *images.shape[1:]), generator=generator)",
    "torch.randn(num, 1, 1, 1, generator=generator).expand(num, *images.shape[1:])",
)
images_in_order = wrong(
    "the images come in their order",
    "torch.randint(len(images), (num,), generator=generator)",
    "(update * num + torch.arange(num)) % len(images)",
)
one_seed_for_each_draw = wrong(
    "does each draw start a generator with the same seed?",
    "(num,), generator=generator\n",
    "(num,), generator=generator.manual_seed(update)\n",
)


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
