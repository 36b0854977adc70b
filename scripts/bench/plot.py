"""Bar chart of the ratios in docs/performance_details.md, with their targets.

python -m scripts.bench.plot docs/performance_details.md docs/performance_details.svg
"""

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

# Table, row, label and target of every bar.
_SHOWN = (
    ("size", "ratio", "size on disk vs raw frames", 52.0),
    ("read", "shards 50 random 128 ratio", "read 128 random transitions", 6.0),
    ("read", "shards 50 slices 2x64 ratio sample", "sample 2 slices of 64", 18.0),
    ("read", "shards 50 random 128 ratio memmap", "read 128 random vs gather from memmap", 1.0),
    ("sample", "shards 50 random ratio", "buffer.sample(128)", 6.0),
    ("sample", "shards 50 slices 2x64 ratio", "buffer.sample, 2 slices of 64", 15.0),
    ("sample", "shards 50 frame stack 4 ratio", "buffer.sample, stacks of 4 frames", 6.0),
    ("cold", "random 20 batches ratio", "disk reads of 20 random batches, cold", 20.0),
    ("memory", "tensors random ratio", "in memory, random", 1.0),
    ("memory", "tensors slices 2x64 ratio", "in memory, slices", 4.0),
    ("convert", "dopamine Pong ratio", "convert Pong, 2 workers", 1.0),
    ("collect", "cartpole ratio", "Collector, CartPole", 4.0),
    ("collect", "workers collect ratio", "rlx collect vs MultiCollector, Pong", 3.0),
    ("preprocess", "best chunk ratio", "preprocess vs best chunk size", 4.0),
    ("preprocess", "default ratio", "preprocess vs defaults", 50.0),
)
_COLOURS = MappingProxyType({True: "#2a7f62", False: "#c8772e"})


@dataclass(frozen=True, slots=True)
class Bar:
    """One ratio and its target."""

    label: str
    ratio: float
    target: float


def bars(page: str) -> list[Bar]:
    """The ratios that a page has.

    Example:
        >>> bars("<!-- size -->\\n| ratio | 46.0 |\\n<!-- /size -->")
        [Bar(label='size on disk vs raw frames', ratio=46.0, target=52.0)]
    """
    found = []
    for name, row, label, target in _SHOWN:
        table = re.search(f"<!-- {name} -->(.*)<!-- /{name} -->", page, re.DOTALL)
        value = table and re.search(rf"^\| {re.escape(row)} \| ([\d.,]+) \|$", table[1], re.MULTILINE)
        if value:
            found.append(Bar(label, float(value[1].replace(",", "")), target))
    return found


def draw(shown: Sequence[Bar], path: Path) -> None:
    """Writes the picture."""
    import matplotlib as mpl  # noqa: PLC0415  (an extra)

    mpl.use("svg")
    # The same ratios, the same bytes; and letters that stay letters.
    mpl.rcParams.update({"svg.hashsalt": "rlx", "svg.fonttype": "none", "font.family": "sans-serif"})
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure, axes = plt.subplots(figsize=(8, 0.42 * len(shown) + 1.2), layout="constrained")
    places = range(len(shown), 0, -1)
    axes.barh(places, [bar.ratio for bar in shown], color=[_COLOURS[bar.ratio >= bar.target] for bar in shown])
    axes.plot([bar.target for bar in shown], places, "k|", markersize=16, label="target")
    axes.set_xscale("log")
    axes.set_xlim(0.8, 1.5 * max(bar.ratio for bar in shown))
    axes.set_yticks(places, [f"{bar.label}: {bar.ratio:.3g}x" for bar in shown])
    axes.set_xticks(ticks := [1, 2, 5, 10, 20, 50, 100, 200, 500], [f"{tick}x" for tick in ticks])
    axes.minorticks_off()
    axes.axvline(1, color="grey", linewidth=0.8)
    figure.supxlabel("ratio to TorchRL 0.14.1, or to what the label names; above 1, rlx is better", fontsize="medium")
    axes.legend(loc="lower right", frameon=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    """Draws what a page tells."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path)
    parser.add_argument("picture", type=Path)
    options = parser.parse_args()
    draw(bars(options.page.read_text()), options.picture)


if __name__ == "__main__":
    main()
