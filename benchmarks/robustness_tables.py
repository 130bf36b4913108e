"""Tables of docs/robustness.md: kills, damage, bad input, what checkpoints cost."""

from typing import Any

from benchmarks.harness import machine


def kills_table(record: dict[str, Any]) -> str:
    lines = ["| killed | times |", "|---|---|"]
    stages = {name: num for name, num in record["stages"].items() if not name.startswith("not")}
    lines += [f"| {name} | {num} |" for name, num in sorted(stages.items())]
    each = sorted(set(record["kinds"].values()))
    spread = f"{each[0]} to {each[-1]}" if len(each) > 1 else f"{each[0]}"
    note = (
        f"{record['equal']} of {record['runs']} runs, killed {record['kills']} times in all, ended "
        f"byte for byte like runs that nobody killed; flfl, semifl and fedmatch, loop and grouped, "
        f"iid and Dirichlet, {spread} runs each; "
        f"{machine(record)}."
    )
    return "\n".join([*lines, "", note])


def corruption_table(record: dict[str, Any]) -> str:
    lines = [
        "| federation | tries | noticed, answered rightly | by the one before | by a copy |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['federation']} | {row['tries']:,} | {row['right']:,} | "
        f"{row['used the previous one']:,} | {row['used a copy']:,} |"
        for row in record["rows"]
    ]
    return "\n".join([*lines, "", f"{machine(record)}."])


def hostile_table(record: dict[str, Any]) -> str:
    lines = [
        "| entry point | cases | refused | accepted | of them processes |",
        "|---|---|---|---|---|",
    ]
    rows = record["rows"]
    for entry in dict.fromkeys(row["entry"] for row in rows):
        own = [row for row in rows if row["entry"] == entry]
        cases, refused, accepted = (
            sum(row[name] for row in own) for name in ("cases", "refused", "accepted")
        )
        processes = sum(row["cases"] for row in own if row["run"] == "process")
        lines.append(f"| {entry} | {cases:,} | {refused:,} | {accepted:,} | {processes:,} |")
    total, broken = (sum(row[name] for row in rows) for name in ("cases", "broken"))
    worst = max(row["worst_seconds"] for row in rows if row["run"] == "inside")
    note = (
        f"{total:,} cases, {broken} of which broke a rule; at most {worst:.1f} s and "
        f"{record['peak_memory_mib']:,} MiB in one process for all; {machine(record)}."
    )
    return "\n".join([*lines, "", note])


def checkpointing_table(record: dict[str, Any]) -> str:
    rows = record["rows"]
    without, kept = (sum(row[name] for row in rows) / len(rows) for name in ("without", "with"))
    return (
        f"Quick preset, {record['settings']['rounds']} rounds, {record['repeats']} runs of each "
        f"kind in turn: {without:.2f} s a round without and {kept:.2f} s with a checkpoint every "
        f"round; round by round {record['percent']:+.1f} % (median), "
        f"{record['percent_of_sum']:+.1f} % over all; {machine(record)}."
    )
