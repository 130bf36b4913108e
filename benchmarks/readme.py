"""Write the tables of README and docs from the newest records: python -m benchmarks.readme"""

import re
from pathlib import Path
from typing import Any

from benchmarks.harness import all_records, latest_record, machine
from benchmarks.method_tables import (
    baselines_table,
    figures_table,
    methods_table,
    reproduced_table,
    texts_table,
)
from benchmarks.peers import table as peers_table
from benchmarks.robustness_tables import (
    checkpointing_table,
    corruption_table,
    hostile_table,
    kills_table,
)

ROOT = Path(__file__).parents[1]
DOCS = ("augmentation.md", "performance.md", "methods.md", "reproduce.md", "robustness.md")
PAGES = [ROOT / "README.md", *(ROOT / "docs" / name for name in DOCS)]


def demo_table(record: dict[str, Any]) -> str:
    lines = ["| | test accuracy, mean ± std (%) | per seed | training |", "|---|---|---|---|"]
    for row in record["rows"]:
        seeds = ", ".join(f"{value:.1f}" for value in row["test_accuracy"])
        lines.append(
            f"| {row['title']} | {row['mean']:.1f} ± {row['std']:.1f} | {seeds} | "
            f"{row['wall_seconds']:.0f} s |"
        )
    config = record["config"]
    note = (
        f"{config['labels']} labels, {config['train_size']:,} images, {config['clients']} clients, "
        f"{config['rounds']} rounds; {record['wall_seconds']:.0f} s in all on {machine(record)}."
    )
    return "\n".join([*lines, "", note])


def step_table(record: dict[str, Any]) -> str:
    names = ("released", "loop", "vmap", "grouped", "cores")
    lines = [
        f"| model | L x B | {' | '.join(names)} | best vs released |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in record["rows"]:
        rates = {name: rate["median"] for name, rate in row["images_per_second"].items()}
        cells = " | ".join(f"{rates[n]:,.0f}" if n in rates else "" for n in names)
        best = max(rate for name, rate in rates.items() if name != "released")
        lines.append(
            f"| {row['model']} | {row['lanes']} x {row['batch']} | {cells} | "
            f"{best / rates['released']:.2f}x |"
        )
    dense, step = record["dense_gflops"], record["step_gflops"]
    shapes = ", ".join(
        f"{rate['forward']:.0f} forward and {rate['2F + 3B']:.0f} in 2F + 3B at {shape}"
        for shape, rate in dense.items()
    )
    ops = record["ops_per_client_step"]
    counts = ", ".join(
        f"{ops[f'{model}, one at a time']:.0f} and {ops[f'{model}, stacked']:.1f} for {model}"
        for model in ("cnn", "wrn-10-1", "wrn-28-2")
    )
    note = (
        f"Images/s, medians of {record['repeats']} interleaved repeats; {machine(record)}. The "
        f"wrn-28-2 step reaches {step:.0f} GFLOP/s; a dense 3x3 convolution of 320 images "
        f"{shapes}. "
        f"Operations dispatched per client-step, one at a time and ten stacked: {counts}."
    )
    return "\n".join([*lines, "", note])


PHASES = ("pseudo_label", "local_training", "fine_tune", "recalibrate", "evaluate")


def round_table(record: dict[str, Any]) -> str:
    lines = [
        "| round | | " + " | ".join(name.replace("_", " ") for name in PHASES) + " | total |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in record["rows"]:
        for who, title in (("released", "released code's way"), ("fl2fast", "fl2fast")):
            cells = " | ".join(f"{row[who][name]:.1f}" for name in (*PHASES, "total"))
            lines.append(f"| {row['round']} | {title} | {cells} |")
    ratios = ", ".join(f"{row['ratio']:.1f}x" for row in record["rows"])
    note = (
        f"Seconds; {ratios} less time, median {record['ratio']:.1f}x; "
        f"`--lowering {record['settings']['lowering']}`; {machine(record)}."
    )
    return "\n".join([*lines, "", note])


def seeds_table(record: dict[str, Any]) -> str:
    lines = [
        "| seeds | one after the other | stacked | whole command | server | local training |",
        "|---|---|---|---|---|---|",
    ]
    for row in record["rows"]:
        ratio = row["ratio"]
        lines.append(
            f"| {row['seeds']} | {row['alone']['wall']:.0f} s | {row['stacked']['wall']:.0f} s | "
            f"{ratio['wall']:.2f}x | {ratio['server']:.2f}x | {ratio['local_training']:.2f}x |"
        )
    settings = record["settings"]
    note = (
        f"Quick preset, {settings['rounds']} rounds, {settings['train_size']:,} images, start-up "
        f"counted; {machine(record)}."
    )
    return "\n".join([*lines, "", note])


def ragged_table(record: dict[str, Any]) -> str:
    lines = ["| `--lowering` | IID | Dirichlet 0.1 | ratio |", "|---|---|---|---|"]
    for row in record["rows"]:
        iid, ragged = (row["micros_per_image"][name] for name in ("iid", "dirichlet:0.1"))
        lines.append(
            f"| {row['lowering']} | {iid['median']:.0f} ({iid['min']:.0f} to {iid['max']:.0f}) | "
            f"{ragged['median']:.0f} ({ragged['min']:.0f} to {ragged['max']:.0f}) | "
            f"{row['ratio']:.2f} |"
        )
    note = f"Microseconds of local training per image, quick preset; {machine(record)}."
    return "\n".join([*lines, "", note])


def precision_table(record: dict[str, Any]) -> str:
    lines = ["| | test accuracy, mean ± std (%) | per seed |", "|---|---|---|"]
    for row in record["rows"]:
        seeds = ", ".join(f"{value:.1f}" for value in row["test_accuracy"])
        lines.append(f"| {row['way']} | {row['mean']:.1f} ± {row['std']:.1f} | {seeds} |")
    note = f"streetdigits, quick preset, {record['rounds']} rounds; {machine(record)}."
    return "\n".join([*lines, "", note])


def forecast_table(record: dict[str, Any]) -> str:
    lines = ["| | predicted | measured | ratio |", "|---|---|---|---|"]
    for row in record["rows"]:
        scale, unit = (2**20, "MiB") if row["what"] == "peak" else (1, "s")
        what = "memory" if row["what"] == "peak" else row["what"].replace("_", " ")
        cells = " | ".join(f"{row[k] / scale:,.2f} {unit}" for k in ("predicted", "measured"))
        lines.append(f"| {what} | {cells} | {row['ratio']:.2f} |")
    note = (
        f"Quick preset, {record['rounds']} rounds; the plan counts every row as accepted and every "
        f"batch as partly sure, the most a round can cost; {machine(record)}."
    )
    return "\n".join([*lines, "", note])


def reference_table(record: dict[str, Any]) -> str:
    lines = ["| trained on | test accuracy (%) |", "|---|---|"]
    for row in record["rows"]:
        seeds = ", ".join(f"{value:.1f}" for value in row["test_accuracy"])
        lines.append(f"| {row['title']} | {row['mean']:.1f} ± {row['std']:.1f} ({seeds}) |")
    return "\n".join([*lines, "", f"{record['about']} {machine(record)}."])


def augment_table(record: dict[str, Any]) -> str:
    lines = [
        "| views at once | PIL, every core | torch | DALI | torch vs PIL | DALI vs PIL |",
        "|---|---|---|---|---|---|",
    ]
    for row in record["rows"]:
        rates = " | ".join(f"{row['rates'][name]:,.0f}" for name in ("pil", "torch", "dali"))
        ratios = " | ".join(f"{row['vs_pil'][name]:.1f}x" for name in ("torch", "dali"))
        lines.append(f"| {row['batch']:,} | {rates} | {ratios} |")
    note = (
        f"Strong views/s, medians of {record['repeats']} interleaved repeats, PIL in "
        f"{record['processes']} processes; {machine(record)}."
    )
    return "\n".join([*lines, "", note])


def datasets_table(record: dict[str, Any]) -> str:
    lines = ["| dataset | images/s | whole command |", "|---|---|---|"]
    for row in record["rows"]:
        rate, seconds = row["images_per_second"], row["wall_seconds"]
        lines.append(f"| {row['dataset']} | {rate:,.0f} | {seconds:.0f} s |")
    note = f"`fl2fast train --dataset NAME {record['flags']}`; {machine(record)}."
    return "\n".join([*lines, "", note])


def fashion_table(record: dict[str, Any]) -> str:
    lines = [
        "| seeds | after round | fl2fast, mean ± std (%) | per seed | authors' code, one seed |",
        "|---|---|---|---|---|",
    ]
    records = [record, *all_records("fashion-more")]
    for own in records:
        seeds = f"{own['seed']} to {own['seed'] + own['seeds'] - 1}"
        for row in own["rows"]:
            if row["reference"] is not None:
                each = ", ".join(f"{value:.1f}" for value in row["test_accuracy"])
                spread = f"{row['mean']:.1f} ± {row['std']:.1f}"
                cells = (seeds, row["round"], spread, each, row["reference"])
                lines.append(f"| {' | '.join(map(str, cells))} |")
    times = " and ".join(f"{own['wall_seconds']:.0f} s" for own in records)
    return "\n".join([*lines, "", f"Seeds stacked: {times}; {machine(record)}."])


def parity_table(record: dict[str, Any]) -> str:
    lines = [
        "| op | torch: largest | mean | pixels that differ | DALI: largest | mean | differ |",
        "|---|---|---|---|---|---|---|",
    ]
    by_op: dict[str, list[dict[str, Any]]] = {}
    for row in record["rows"]:
        by_op.setdefault(row["op"], []).append(row)
    for op, rows in by_op.items():
        cells = []
        for backend in ("torch", "dali"):
            largest = max(row[backend]["largest"] for row in rows)
            mean = sum(row[backend]["mean"] for row in rows) / len(rows)
            differing = sum(row[backend]["differing"] for row in rows) / len(rows)
            cells.append(f"{largest} | {mean:.4f} | {100 * differing:.3f} %")
        lines.append(f"| {op} | {' | '.join(cells)} |")
    counts = {row["dataset"]: row["count"] for row in record["rows"]}
    images = " and ".join(f"{count:,} images of {name}" for name, count in counts.items())
    note = f"Grey levels of 255 against PIL; {images}; CPU backends; {machine(record)}."
    return "\n".join([*lines, "", note])


def wide_table(record: dict[str, Any]) -> str:
    (row,) = record["rows"]
    return (
        f"One step of {row['lanes']} learners of `{row['model']}` with {row['classes']} classes, "
        f"batches of {row['batch']}, `--chunk {row['chunk']}`: at most "
        f"{row['peak_gib']:.1f} GiB of memory in the whole process, {row['seconds']:.0f} s; "
        f"{machine(record)}."
    )


TABLES = {
    "demo": demo_table,
    "step": step_table,
    "round": round_table,
    "seeds": seeds_table,
    "ragged": ragged_table,
    "peers": peers_table,
    "precision": precision_table,
    "forecast": forecast_table,
    "streetdigits": reference_table,
    "augment": augment_table,
    "datasets": datasets_table,
    "fashion": fashion_table,
    "wide": wide_table,
    "parity": parity_table,
    "methods": methods_table,
    "baselines": baselines_table,
    "reproduced": reproduced_table,
    "figures": figures_table,
    "texts": texts_table,
    "kills": kills_table,
    "corruption": corruption_table,
    "hostile": hostile_table,
    "checkpointing": checkpointing_table,
}
RECORD_OF = {"figures": "reproduced", "texts": "reproduced"}  # where another than the table's name


def render(text: str) -> str:
    """A page with each fenced table made anew."""
    for name, table in TABLES.items():
        fence = re.compile(f"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        if fence.search(text):
            made = table(latest_record(RECORD_OF.get(name, name)))
            text = fence.sub(lambda m, made=made: f"{m[1]}{made}\n{m[2]}", text)
    return text


def main() -> None:
    for page in PAGES:
        page.write_text(render(page.read_text()))


if __name__ == "__main__":
    main()
