"""Colours and small marks that all pictures share. Two hues that every kind of colour vision tells apart, and greys."""

import numpy as np
import torch

INK = "#22292f"
SOFT = "#7b858d"  # secondary text
FAINT = "#dfe3e6"  # what lost
PAPER = "#ffffff"
CHOSEN = "#0b6aa8"
ACCENT = "#c8590a"  # a root, and what was contracted
# Okabe and Ito's colours, which every kind of colour vision tells apart
SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#22292f", "#7b858d", "#8a6d3b")
RIGHT, WRONG = SERIES[2], SERIES[1]
MANY = 24  # nodes or keys; above, there is no room for names and numbers
SHADES = ("#fbe7d3", "#f7d3b0", "#f2be8d", "#ecaa6c")  # cycles, from the outermost in


def chances(logits, keys: int) -> np.ndarray | None:
    """e^logits over their largest, (keys,), 0 for keys that do not race."""
    if logits is None:
        return None
    x = torch.as_tensor(logits).detach().double().cpu().flatten()
    if len(x) != keys:
        raise ValueError(f"logits of shape {tuple(torch.as_tensor(logits).shape)} do not fit a trace over {keys} keys")
    return x.sub(x.max() if len(x) else 0.0).exp().nan_to_num(0.0).numpy()


def badge(ax, x: float, y: float, text, *, color: str = CHOSEN, size: float = 8.5, zorder: float = 6) -> None:
    """A number on a small disc, for the order of choice."""
    box = {"boxstyle": "circle,pad=0.22", "facecolor": PAPER, "edgecolor": color, "linewidth": 0.9}
    ax.text(
        x, y, str(text), ha="center", va="center", fontsize=size, color=color, zorder=zorder, bbox=box, weight="bold"
    )


def node(
    ax,
    x: float,
    y: float,
    text,
    *,
    fill: str = PAPER,
    edge: str = INK,
    ink: str = INK,
    radius: float,
    size: float = 9.5,
):
    """A disc with a name in it; returns the disc."""
    from matplotlib.patches import Circle

    disc = ax.add_patch(Circle((x, y), radius, facecolor=fill, edgecolor=edge, linewidth=1.2, zorder=5))
    ax.text(x, y, str(text), ha="center", va="center_baseline", fontsize=size, color=ink, zorder=6)
    return disc


def mix(color: str, share: float) -> tuple:
    """A colour laid over the paper: 0 is paper, 1 the full colour."""
    from matplotlib.colors import to_rgb

    return tuple(share * c + (1 - share) * p for c, p in zip(to_rgb(color), to_rgb(PAPER), strict=True))


def bare(ax, x: tuple[float, float], y: tuple[float, float], caption: str, *, equal: bool = True) -> None:
    """No frame and no ticks, this part of the plane in view, and a caption below."""
    if equal:  # the axes keep their box, so that titles in a row stay in line; they show more of the plane instead
        ax.update_datalim([(x[0], y[0]), (x[1], y[1])])
        ax.margins(0)
        ax.set_aspect("equal", adjustable="datalim")
    else:
        ax.set(xlim=x, ylim=y)
    ax.axis("off")
    ax.text(0.5, -0.01, caption, transform=ax.transAxes, ha="center", va="top", fontsize=8.5, color=SOFT)
