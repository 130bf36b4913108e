"""A target's picture: learning curves of its rows, or accuracy over the number of labels."""

from pathlib import Path

from matplotlib.figure import Figure

from fl2fast.plot import PANELS, draw_curves
from fl2fast.reproduce.tables import Filled, mean_std

# The panels of the paper's figure; Table 2 has the runs of Fig. 3. A table of many settings has no
# picture.
CURVES = {"table2": PANELS, "fig3": PANELS, "fig4": PANELS[:2]}


def draw(target: str, filled: list[Filled], path: Path) -> bool:
    """Draw what is finished; False where there is nothing to draw."""
    done = [f for f in filled if f.result is not None]
    if not done or (target not in CURVES and target != "fig1"):
        return False
    if target == "fig1":
        _draw_labels(done, path)
    else:
        runs = {f.cell.row: f.result.rounds for f in done if f.result is not None}
        draw_curves(runs, path, CURVES[target])
    return True


def _draw_labels(done: list[Filled], path: Path) -> None:
    """A line per method, with one standard deviation over seeds at each number of labels."""
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axis = figure.subplots()
    for row in dict.fromkeys(f.cell.row for f in done):
        own = [(f.cell.settings["labels"], f.result) for f in done if f.cell.row == row]
        points = [(labels, *mean_std(r.accuracy)) for labels, r in own if r is not None]
        labels, means, stds = zip(*sorted(points), strict=True)
        deviations = [std or 0.0 for std in stds]
        axis.errorbar(labels, means, deviations, marker="o", capsize=3, label=row)
    ticks = sorted({f.cell.settings["labels"] for f in done})
    axis.set_xscale("log")
    axis.set_xticks(ticks, [str(tick) for tick in ticks])
    axis.minorticks_off()
    axis.set_xlabel("labels")
    axis.set_ylabel("test accuracy (%)")
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(fontsize=9, frameon=False)
    figure.savefig(path, dpi=130)
