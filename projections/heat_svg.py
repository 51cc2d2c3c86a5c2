"""A heat map as SVG: layers down, ranks across, one panel before and one after.

The palette is cividis (Nunez, Anderton, Renslow 2018), which reads the same with any colour vision and in
grey; every cell tells its number to whoever points at it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple
from xml.sax.saxutils import escape

from projections.heat_map import HeatMap, Panel

_CIVIDIS = (
    (0, 34, 78),
    (18, 53, 112),
    (59, 73, 108),
    (87, 93, 109),
    (112, 113, 115),
    (138, 134, 120),
    (165, 156, 116),
    (195, 179, 105),
    (225, 204, 85),
    (254, 232, 56),
)
_MARGIN, _GAP, _TOP, _LABELS, _SCALE = 28, 36, 112, 30, 86
"""Pixels: around it all, between panels, above the cells, for the layers' numbers, for the colour scale."""
_LIGHT = 0.55
"""Part of the palette from which black text reads better than white."""


class _Grid(NamedTuple):
    """Where the cells of a panel are; all in pixels."""

    x: float
    width: float
    height: float
    """``width`` and ``height`` are those of a cell."""


def render(heat: HeatMap) -> str:
    """The heat map as an SVG document."""
    panels = [(name, panel) for name, panel in (("Before", heat.before), ("After", heat.after)) if panel]
    n_layers = max(len(panel.ranks) for _, panel in panels)
    n_ranks = max(len(panel.ranks[0]) for _, panel in panels)
    width, height = _size(420, n_ranks, 7, 60), _size(560, n_layers, 7, 26)
    most = max(1.5, *(load for _, panel in panels for layer in panel.relative() for load in layer))
    parts: list[str] = []
    x = float(_MARGIN + _LABELS)
    for name, panel in panels:
        grid = _Grid(x, width, height)
        parts += _panel(name, panel, grid, most)
        x += max(width * len(panel.ranks[0]), 210) + _GAP + _LABELS
    bottom = _TOP + height * n_layers
    parts += _scale(x - _LABELS, bottom, most)
    total_width, total_height = max(x + _SCALE, 560), bottom + 52
    return "\n".join([*_head(heat, total_width, total_height), *parts, "</svg>\n"])


def _size(room: int, n: int, least: int, most: int) -> float:
    return max(least, min(most, room // n))


def _head(heat: HeatMap, width: float, height: float) -> Iterator[str]:
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
        f'viewBox="0 0 {width:g} {height:g}" font-family="system-ui, Helvetica, Arial, sans-serif" '
        'font-size="12" fill="#333">'
    )
    yield f"<title>{escape(_title(heat))}</title>"
    yield f'<rect width="{width:g}" height="{height:g}" fill="#fff"/>'
    yield _text(_MARGIN, 36, _title(heat), size=18, fill="#111")
    yield _text(_MARGIN, 58, f"{heat.instance_id}: load of each rank by the mean of its layer", fill="#555")


def _title(heat: HeatMap) -> str:
    balances = [f"{panel.balance:.3f}" for panel in (heat.before, heat.after) if panel]
    return f"Expert load around epoch {heat.epoch}: balance {' → '.join(balances)}"


def _panel(name: str, panel: Panel, grid: _Grid, most: float) -> Iterator[str]:
    yield _text(grid.x, _TOP - 26, f"{name}: epoch {panel.epoch}, window {panel.window}", fill="#111")
    yield _text(grid.x, _TOP - 10, f"balance {panel.balance:.3f}", fill="#555")
    n_ranks, n_layers = len(panel.ranks[0]), len(panel.ranks)
    for layer, loads in enumerate(panel.relative()):
        for rank, load in enumerate(loads):
            yield from _cell(grid, layer, rank, load, most)
    for layer in range(0, n_layers, _every(grid.height, 13)):
        y = _TOP + grid.height * (layer + 0.5) + 4
        yield _text(grid.x - 6, y, str(layer), size=10, anchor="end", fill="#555")
    bottom = _TOP + grid.height * n_layers
    for rank in range(0, n_ranks, _every(grid.width, 20)):
        x = grid.x + grid.width * (rank + 0.5)
        yield _text(x, bottom + 14, str(rank), size=10, anchor="middle", fill="#555")
    yield _text(grid.x + grid.width * n_ranks / 2, bottom + 32, "rank", anchor="middle", fill="#555")
    middle = _TOP + grid.height * n_layers / 2
    turned = f'transform="rotate(-90 {grid.x - 26:g} {middle:g})"'
    yield _text(grid.x - 26, middle, "MoE layer", anchor="middle", fill="#555", more=turned)


def _every(cell: float, room: int) -> int:
    """Every how many cells there is room for a number."""
    return max(1, -(-room // int(cell)))


def _cell(grid: _Grid, layer: int, rank: int, load: float, most: float) -> Iterator[str]:
    x, y = grid.x + grid.width * rank, _TOP + grid.height * layer
    part = load / most
    yield (
        f'<rect x="{x:g}" y="{y:g}" width="{grid.width - 1:g}" height="{grid.height - 1:g}" '
        f'fill="{colour(part)}"><title>layer {layer}, rank {rank}: {load:.2f}</title></rect>'
    )
    if grid.width >= 34 and grid.height >= 14:
        fill = "#000" if part > _LIGHT else "#fff"
        at = x + (grid.width - 1) / 2, y + grid.height / 2 + 3.5
        yield _text(*at, f"{load:.2f}", size=10, anchor="middle", fill=fill)


def _scale(x: float, bottom: float, most: float) -> Iterator[str]:
    """The colours from no load to the most, with the even load marked."""
    top, steps = float(_TOP), 48
    height = max(bottom - top, 72.0)
    for step in range(steps):
        y = top + height * (1 - (step + 1) / steps)
        shade = colour((step + 0.5) / steps)
        yield f'<rect x="{x:g}" y="{y:.2f}" width="14" height="{height / steps + 0.5:.2f}" fill="{shade}"/>'
    ticks = {0.0: "0", 1.0: "1 even"}
    if most > 1.2:
        ticks[most] = f"{most:.2f}"
    for value, label in ticks.items():
        y = top + height * (1 - value / most)
        yield f'<line x1="{x + 14:g}" y1="{y:.2f}" x2="{x + 19:g}" y2="{y:.2f}" stroke="#555"/>'
        yield _text(x + 23, y + 4, label, size=11)


def colour(part: float) -> str:
    """The colour at ``part``, from 0 to 1, of the palette."""
    place = min(max(part, 0.0), 1.0) * (len(_CIVIDIS) - 1)
    low = min(int(place), len(_CIVIDIS) - 2)
    pairs = zip(_CIVIDIS[low], _CIVIDIS[low + 1], strict=True)
    return "#" + "".join(f"{round(a + (b - a) * (place - low)):02x}" for a, b in pairs)


def _text(
    x: float,
    y: float,
    text: str,
    *,
    size: int = 12,
    anchor: str = "start",
    fill: str = "#333",
    more: str = "",
) -> str:
    extra = f" {more}" if more else ""
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" fill="{fill}"{extra}>'
        f"{escape(text)}</text>"
    )
