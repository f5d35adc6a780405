"""Chapter 11: the loss of a latent diffusion model, and its update in micro-batches."""

from solutions.answers import right, wrong

FILLINGS = {
    "denoising-loss": {
        "keeps_the_encoders_graph": wrong(
            "encoder's graph is kept", "with torch.no_grad():", "if True:"
        ),
        "forgets_the_mean": wrong("clean latents are [1.5, 1.5]", " - mean)", ")"),
        "multiplies_by_the_deviation": wrong(
            "clean latents are [4.0, 4.0]", ") / deviation", ") * deviation"
        ),
        "draws_latents": wrong(
            "clean latents are [13.0, 13.0]", "latent_dist.mode() -", "latent_dist.sample() -"
        ),
        "predicts_the_latents": wrong(
            "for noise 0 has a loss of 1.000", "F.mse_loss(seen, noise)", "F.mse_loss(seen, clean)"
        ),
        "adds_no_noise": wrong(
            "clean latents are [1.0", "noising.add_noise(clean, noise, times)\n", "clean\n"
        ),
        "takes_the_distance": wrong("0 for noise 2 has a loss of 2.000", "mse_loss", "l1_loss"),
        "never_has_a_graph": wrong(
            "The loss has no graph",
            *("    return F.", "    with torch.no_grad():\n        return F."),
        ),
        "takes_tuples": right(
            *("(pixels).latent_dist.mode() -", "(pixels, return_dict=False)[0].mode() -"),
            *("encoder_hidden_states=words).sample", "words, return_dict=False)[0]"),
        ),
        "takes_the_first": right(
            *("(pixels).latent_dist.mode() -", "(pixels)[0].mode() -"),
            *("encoder_hidden_states=words).sample", "encoder_hidden_states=words)[0]"),
        ),
        "squares_by_hand": right("F.mse_loss(seen, noise)", "(seen - noise).square().mean()"),
    },
    "update": {
        "divides_by_the_number": wrong(
            "num=2, 5 images: the loss is 8.306", " * len(piece[0]) / len(pixels)", " / num"
        ),
        "forgets_the_division": wrong(
            "num=2, 5 images: the loss is 16.612", " * len(piece[0]) / len(pixels)", ""
        ),
        "never_clears": wrong("num=2: a weight is", "    optimizer.zero_grad()\n", ""),
        "updates_in_each": wrong(
            "num=2, 5 images: the loss is 6.537", "    optimizer.step()", "        optimizer.step()"
        ),
        "averages_in_each_as_well": wrong(
            "the average moved 2 times",
            *("total += loss.item()", "total += loss.item()\n        ema.step(unet.parameters())"),
        ),
        "averages_too_early": wrong(
            "The average moved before",
            *("    optimizer.step()\n", ""),
            *("    return total", "    optimizer.step()\n    return total"),
        ),
        "forgets_the_average": wrong(
            "the average moved 0 times", "    ema.step(unet.parameters())\n", ""
        ),
        "holds_all_graphs": wrong(
            "backward for each micro-batch before the next",
            *("        loss.backward()\n        total += loss.item()", "        total += loss"),
            *("    optimizer.step()", "    total.backward()\n    optimizer.step()"),
            *("return total", "return total.item()"),
        ),
        "clears_last": right(
            *("    return total", "    optimizer.zero_grad()\n    return total"),
        ),
    },
}
