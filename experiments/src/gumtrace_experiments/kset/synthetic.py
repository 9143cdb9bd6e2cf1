"""Made-up digits, for tests and for trying things out where MNIST is not at hand: the bars of a pocket calculator,
moved, thickened and blurred at random."""

import torch
from torch import Tensor
from torch.nn.functional import conv2d, pad

_SIDE = 28
_BARS = {  # the rows and columns that each covers, before it is moved
    "top": ((4, 6), (9, 19)),
    "middle": ((13, 15), (9, 19)),
    "bottom": ((22, 24), (9, 19)),
    "upper left": ((5, 14), (8, 10)),
    "upper right": ((5, 14), (18, 20)),
    "lower left": ((14, 23), (8, 10)),
    "lower right": ((14, 23), (18, 20)),
}
_ON = ("1110111", "0010010", "1011101", "1011011", "0111010", "1101011", "1101111", "1010010", "1111111", "1111011")
_ORDER = ("top", "upper left", "upper right", "middle", "lower left", "lower right", "bottom")  # of the bits above
_FAR = 3  # pixels that one may be moved


def generate(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Images (count, 784) uint8 and their digits (count,), in random order.

    >>> images, labels = generate(5, torch.Generator().manual_seed(0))
    >>> images.shape, images.dtype, labels.shape
    (torch.Size([5, 784]), torch.uint8, torch.Size([5]))
    """
    labels = torch.randint(10, (count,), generator=generator)
    clean = torch.stack([_drawn(bits) for bits in _ON])[labels]
    moves = torch.randint(2 * _FAR + 1, (count, 2), generator=generator)
    moved = _moved(clean, moves)
    width = torch.rand(count, 1, 1, generator=generator)  # 0: a bar is sharp, 1: wide and blurred
    wide = conv2d(moved[:, None], torch.full((1, 1, 3, 3), 1 / 5), padding=1).squeeze(1).clamp(max=1)
    ink = 0.7 + 0.3 * torch.rand(count, 1, 1, generator=generator)
    images = ((1 - width) * moved + width * wide) * ink
    return (255 * images).round().to(torch.uint8).flatten(1), labels


def _drawn(bits: str) -> Tensor:
    image = torch.zeros(_SIDE, _SIDE)
    for name, bit in zip(_ORDER, bits, strict=True):
        if bit == "1":
            (top, bottom), (left, right) = _BARS[name]
            image[top:bottom, left:right] = 1
    return image


def _moved(images: Tensor, moves: Tensor) -> Tensor:
    """Each by so many pixels, less _FAR, down and to the right."""
    room = pad(images, (_FAR,) * 4)
    rows, columns = (torch.arange(_SIDE) + 2 * _FAR - moves[:, i, None] for i in range(2))  # (B, 28)
    return room.gather(1, rows[..., None].expand(-1, -1, room.shape[-1])).gather(
        2, columns[:, None].expand(-1, _SIDE, -1)
    )
