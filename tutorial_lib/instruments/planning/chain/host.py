"""A host beside the device: how fast a link to it is, and how much may wait there."""

from __future__ import annotations

from dataclasses import dataclass

from tutorial_lib.units import parse_bytes

# Bytes/s in one direction, as published: 16 lanes of PCI-SIG's 8, 16 and 32 GT/s, and NVIDIA's
# GH200 data sheet, half of its 900 GB/s. Real copies reach about four fifths.
LINKS = {"pcie-3": 16e9, "pcie-4": 32e9, "pcie-5": 64e9, "nvlink-c2c": 450e9}


@dataclass(frozen=True)
class Host:
    """Memory beside the device, and the link to it.

    Args:
        bytes_per_second: Of one direction. Copies in both directions don't slow each other down.
        num_bytes: Pinned memory for what moves, up to 32 MiB less than a GPU pins; `None` is as
            much as a plan wants.
        takes_all: Whether all that may move and has room there does, and nothing is recomputed.
    """

    bytes_per_second: float
    num_bytes: int | None = None
    takes_all: bool = False

    @classmethod
    def of(cls, link: str, num_bytes: int | None = None) -> Host:
        """Read a link's speed in one direction, as in `55GB/s`, or a name, as in `pcie-4`."""
        if link in LINKS:
            return cls(LINKS[link], num_bytes)
        try:
            return cls(parse_bytes(link.removesuffix("/s")), num_bytes)
        except ValueError as error:
            raise ValueError(
                f"The link {link!r} has no speed above 0. Write one, as in 55GB/s, or a name: "
                f"{', '.join(LINKS)}."
            ) from error

    def __post_init__(self) -> None:
        if not self.bytes_per_second > 0 or (self.num_bytes or 0) < 0:
            raise ValueError(
                f"A host needs a link above 0 bytes/s (here {self.bytes_per_second}), and no "
                f"negative memory (here {self.num_bytes}). Without a host, use planning.solve."
            )
