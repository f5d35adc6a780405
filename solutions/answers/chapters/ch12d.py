"""Chapter 12d: how many parameters of a mixture work on a token."""

from solutions.answers import right, wrong

FILLINGS = {
    "active": {
        "counts_all": wrong("280, not 370", " - routed + routed * chosen // experts", ""),
        "forgets_the_rest": wrong("280, not 180", "total - routed + routed", "routed"),
        "counts_one_expert": wrong(
            "280, not 190", "routed * chosen // experts", "routed // experts"
        ),
        "counts_the_others_twice": wrong(
            "280, not 550", "total - routed + routed", "total + routed"
        ),
        "takes_shared_ones_for_routed": wrong("280, not 250", '".experts." in', '"experts." in'),
        "takes_the_share_of_all": wrong(
            "280, not 246",
            "total - routed + routed * chosen // experts",
            "total * chosen // experts",
        ),
        "goes_name_by_name": right(
            "total - routed + routed * chosen // experts",
            "(total * experts - routed * (experts - chosen)) // experts",
        ),
    },
}
