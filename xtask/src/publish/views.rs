//! Tables and lists of pages by name, each made from the results of one suite.

use anyhow::{Result, bail};

use super::cell::{Cell, Line, Published, heading, ratio};
use super::grid::{Grid, grid};
use super::results::Results;
use super::suites::{self, Suite};
use super::{kinds, policies, simulation};

/// The lines of a view, `SUITE/NAME`. A suite that has no results gets a sentence that says so.
///
/// # Errors
/// There is no such view.
pub(crate) fn render(view: &str, published: &Published) -> Result<Vec<Line>> {
    let Some((suite, name)) = view.split_once('/') else { bail!("{view} is no SUITE/VIEW") };
    let Some(suite) = suites::find(suite) else { bail!("no suite {suite}") };
    let Some(results) = published.get(suite.name) else {
        let missing = format!(
            "*No figures of `{}` are published yet; `cargo xtask publish --suite {}` measures them.*",
            suite.name, suite.name
        );
        return Ok(vec![Line::prose(vec![Cell::plain(missing)])]);
    };
    let lines = match (suite.name, name) {
        (_, "heading") => about(suite, results),
        ("block", "losses") => block_losses(results),
        ("block", "calls") => grid(results, &CALLS, |place| {
            !place.contains(" d1") && !place.contains(" d6") && !place.starts_with("ext4")
        }),
        ("block", "counts") => grid(results, &COUNTS, |place| place.ends_with("t1")),
        ("block", "nbd") => grid(results, &NBD, |_| true),
        ("block", "ext4") => grid(results, &EXT4, |place| place.starts_with("ext4")),
        ("consistency", "losses") => consistency_losses(results),
        ("consistency", "to-rollback") => multiples(results, "time_to_rollback"),
        ("consistency", "to-published") => multiples(results, "time_to_rollback_published"),
        ("consistency", "bytes") => bytes(results),
        ("consistency", "words") => grid(results, &WORDS, |_| true),
        ("consistency", "by-file") => grid(results, &BY_FILE, is_by_file),
        ("consistency", "best-by-file") => grid(results, &BEST_BY_FILE, is_by_file),
        ("consistency", "logs") => {
            grid(results, &LOGS, |place| is_by_file(place) && place.contains("random"))
        }
        ("tpcc", "shares") => tpcc(results, "tpmc_to_none"),
        ("tpcc", "to-published") => tpcc(results, "tpmc_to_rollback_published"),
        ("tpcc", "rates") => tpcc(results, "tpmc"),
        ("points", "times") => grid(results, &POINTS, |_| true),
        ("scaling", "limits") => scaling_limits(results),
        ("scaling", "rates") => grid(results, &RATES, |place| place.ends_with(" threads")),
        ("cache", "web" | "webserver" | "mixed") => {
            let streams = [format!("{name}, "), format!("{name} on hdd, ")];
            grid(results, &CACHE, |place| streams.iter().any(|stream| place.starts_with(stream)))
        }
        ("cache", "ssd" | "sd") => {
            let device = format!(" on {name}, ");
            grid(results, &CACHE, |place| place.contains(&device))
        }
        ("cache", "hits") => grid(results, &HITS, |place| {
            !place.contains(" on ssd, ") && !place.contains(" on sd, ")
        }),
        ("cache-clients", "rates") => grid(results, &CLIENTS, |place| !is_hits(place)),
        ("cache-clients", "hits") => grid(results, &HIT_RATES, is_hits),
        ("layers", "buffering") => grid(results, &BUFFERING, |place| place.starts_with("1 file,")),
        ("layers", "all") => grid(results, &LAYERS, |place| place.contains(" files, ")),
        ("wear", "rules") => grid(results, &WEAR, |_| true),
        ("media", "writes") => grid(results, &MEDIA, |place| place.starts_with("write")),
        ("media", "reads") => grid(results, &MEDIA, |place| place.starts_with("read")),
        ("files" | "mount" | "index" | "swap" | "swap-paper", name) => kinds::view(name, results)?,
        ("simulation", name) => simulation::view(name, results)?,
        ("policies" | "ablation", name) => policies::view(name, results)?,
        _ => bail!("no view {view}"),
    };
    Ok(lines)
}

/// Commit, command and machine of the run.
fn about(suite: &Suite, results: &Results) -> Vec<Line> {
    let text = format!(
        "*One run at commit {} of `cargo run --release {}` ({}); {}. The rows behind its \
         figures stand in [{}.json](results/{}.json).*",
        results.commit, results.command, results.machine, results.remarks, suite.name, suite.name
    );
    vec![Line::prose(vec![Cell::plain(text)])]
}

const CALLS: Grid = Grid {
    first: "workload",
    subjects: &[
        "floor",
        "places",
        "everbyte-auto",
        "everbyte-on",
        "everbyte-off",
        "pmemblk-4096",
        "pmemblk-512",
        "tmpfs",
        "ext4-direct",
        "ext4-buffered",
    ],
    metrics: &["time", "time_to_floor", "time_to_places"],
    write: |cell| match cell {
        [_, to_floor, to_places] => {
            format!(", {}x, {}x its places", ratio(*to_floor), ratio(*to_places))
        }
        [_, to_floor, ..] => format!(", {}x", ratio(*to_floor)),
        [_] => String::new(),
        [] => String::new(),
    },
    has_spread: true,
};

const COUNTS: Grid = Grid {
    first: "workload",
    subjects: &["everbyte-auto", "everbyte-on", "everbyte-off", "pmemblk-4096", "pmemblk-512"],
    metrics: &["media_bytes_per_byte", "fences", "log_bytes"],
    write: |cell| match cell {
        [bytes, fences, log, ..] => format!("{bytes:.2}, {fences:.2}, {log:.0}"),
        _ => String::new(),
    },
    has_spread: false,
};

const NBD: Grid = Grid {
    first: "workload",
    subjects: &[
        "nbd-null",
        "nbd-memory",
        "nbd-everbyte",
        "nbd-cache",
        "nbdkit-null",
        "nbdkit-memory",
        "nbdkit-file",
        "qemu-nbd",
    ],
    metrics: &["rate", "server_cpu"],
    write: |cell| match cell {
        [rate, cpu, ..] => format!("{:.0}, {:.1}", rate / 1e3, cpu / 1e3),
        _ => String::new(),
    },
    has_spread: false,
};

const EXT4: Grid = Grid {
    first: "trace",
    subjects: COUNTS.subjects,
    metrics: &["media_bytes_to_whole_blocks"],
    write: |cell| cell.first().map_or_else(String::new, |value| ratio(*value)),
    has_spread: false,
};

const CACHE: Grid = Grid {
    first: "size",
    subjects: &[
        "everbyte",
        "hybrid",
        "clock-migration",
        "everbyte-write-through",
        "dram-lru",
        "dram-lru-equal-cost",
        "dram-lru-equal-capacity",
    ],
    metrics: &["counted_rate_to_backing", "counted_rate_to_backing_at_most"],
    write: |cell| match cell {
        [reached, bound, ..] => format!("{reached:.2} ({bound:.2})"),
        [reached] => format!("{reached:.2}"),
        [] => String::new(),
    },
    has_spread: false,
};

/// Requests a second in real time, and in brackets as a multiple of the backing device's.
const CLIENTS: Grid = Grid {
    first: "workload",
    subjects: CACHE.subjects,
    metrics: &["rate", "rate_to_backing"],
    write: |cell| match cell {
        [rate, to_backing, ..] => format!("{rate:.0} ({})", ratio(*to_backing)),
        [rate] => format!("{rate:.0}"),
        [] => String::new(),
    },
    has_spread: false,
};

/// Slices of hits alone.
fn is_hits(workload: &str) -> bool {
    workload.starts_with("hits, ")
}

const HIT_RATES: Grid = Grid {
    first: "requests",
    subjects: &["everbyte", "hybrid", "block-volume"],
    metrics: &["rate", "rate_to_one_thread"],
    write: |cell| match cell {
        [rate, to_one, ..] => format!("{:.0} ({})", rate / 1e3, ratio(*to_one)),
        _ => String::new(),
    },
    has_spread: false,
};

const HITS: Grid = Grid {
    first: "size",
    subjects: &[
        "everbyte",
        "hybrid",
        "clock-migration",
        "everbyte-write-through",
        "dram-lru-equal-cost",
        "dram-lru-equal-capacity",
    ],
    metrics: &["hits", "hits_simulated"],
    write: |cell| match cell {
        [found, simulated, ..] => format!("{found:.2} ({simulated:.2})"),
        _ => String::new(),
    },
    has_spread: false,
};

/// The paper's words: least and most, and the mean where there is one.
const WORDS: Grid = Grid {
    first: "the paper's words",
    subjects: &["rollback-published", "rollback", "paper"],
    metrics: &["speed_least", "speed_most", "speed_mean"],
    write: |cell| match cell {
        [least, most, mean, ..] => {
            format!("{} to {}, mean {}", ratio(*least), ratio(*most), ratio(*mean))
        }
        [least, most] => format!("{} to {}", ratio(*least), ratio(*most)),
        _ => String::new(),
    },
    has_spread: false,
};

/// Point reads of SQLite: times, and the share of those of SQLite's own mapped pages.
const POINTS: Grid = Grid {
    first: "workload",
    subjects: &["everbyte, copied", "everbyte, mapped", "tmpfs, copied", "tmpfs, mapped"],
    metrics: &["time", "time_to_tmpfs_mapped"],
    write: |cell| match cell {
        [_, share, ..] => format!(" ns, {}", ratio(*share)),
        [_] => " ns".to_owned(),
        _ => String::new(),
    },
    has_spread: true,
};

/// Millions of requests a second that are predicted.
const RATES: Grid = Grid {
    first: "request",
    subjects: &["predicted", "predicted, 64 lanes", "predicted, optane"],
    metrics: &["rate"],
    write: |cell| cell.first().map_or_else(String::new, |rate| format!("{:.2}", rate / 1e6)),
    has_spread: false,
};

const BY_FILE: Grid = Grid {
    first: "workload",
    subjects: &[
        "ramfs",
        "redo-published",
        "block-journal-ordered",
        "block-journal-data",
        "rollback",
    ],
    metrics: &["time_to_rollback_published"],
    write: |cell| cell.first().map_or_else(String::new, |value| ratio(*value)),
    has_spread: false,
};

const BEST_BY_FILE: Grid = Grid {
    first: "workload",
    subjects: &["ramfs", "redo-improved", "block-journal-ordered", "block-journal-data", "shadow"],
    metrics: &["time_to_rollback"],
    write: |cell| cell.first().map_or_else(String::new, |value| ratio(*value)),
    has_spread: false,
};

/// KiB of log of a pass.
const LOGS: Grid = Grid {
    first: "workload",
    subjects: &[
        "rollback-published",
        "rollback",
        "redo-published",
        "redo-improved",
        "block-journal-ordered",
        "block-journal-data",
    ],
    metrics: &["log_bytes_of_pass"],
    write: |cell| cell.first().map_or_else(String::new, |bytes| format!("{:.1}", bytes / 1024.0)),
    has_spread: false,
};

/// Returns true for a write of the paper's records, which are varied by file.
fn is_by_file(place: &str) -> bool {
    place.starts_with("dram: ")
        && place.ends_with(", checkpoint")
        && [" write 1K in ", " write 100K in "].iter().any(|record| place.contains(record))
}

/// Rates, and buffered ones as a multiple of direct ones.
const BUFFERING: Grid = Grid {
    first: "workload",
    subjects: &["ramdisk", "disk"],
    metrics: &["rate", "rate_to_direct"],
    write: |cell| match cell {
        [rate, to_direct, ..] => format!("{rate:.0}, {}x direct", ratio(*to_direct)),
        [rate] => format!("{rate:.0}"),
        [] => String::new(),
    },
    has_spread: false,
};

/// MiB/s, and in brackets as a multiple of the ramdisk's.
const LAYERS: Grid = Grid {
    first: "workload",
    subjects: &["everbyte", "nbd-memory", "ramdisk", "ssd", "rollback", "shadow"],
    metrics: &["throughput", "rate_to_ramdisk"],
    write: |cell| match cell {
        [rate, to_ramdisk, ..] => format!("{rate:.0} ({})", ratio(*to_ramdisk)),
        [rate] => format!("{rate:.0}"),
        [] => String::new(),
    },
    has_spread: false,
};

/// Wear of the most written frame, and of that which one of a hundred exceeds.
const WEAR: Grid = Grid {
    first: "trace",
    subjects: &["near", "next-fit", "least-worn", "hot-cold"],
    metrics: &["most_to_mean", "p99_to_mean", "most_in_place"],
    write: |cell| match cell {
        [most, centile, in_place, ..] => {
            format!("{} / {} ({in_place:.0})", ratio(*most), ratio(*centile))
        }
        _ => String::new(),
    },
    has_spread: false,
};

const MEDIA: Grid = Grid {
    first: "request",
    subjects: &["dram", "stt-mram", "pcm-banks", "reram", "pcm", "simulator", "paper"],
    metrics: &["time_to_4k", "time"],
    write: |cell| match cell {
        [share, time, ..] => format!("{share:.3} ({time:.0})"),
        [share] => format!("{share:.3}"),
        [] => String::new(),
    },
    has_spread: false,
};

/// For each kind of request: the time of one, what two threads reached, and the threads from which on there is another bound.
fn scaling_limits(results: &Results) -> Vec<Line> {
    const KINDS: [(&str, &str); 5] = [
        ("read", "random read 4K"),
        ("rewrite", "random rewrite 4K checkpoint"),
        ("part", "random rewrite 512B checkpoint"),
        ("rewrite-fua", "random rewrite 4K fua"),
        ("part-fua", "random rewrite 512B fua"),
    ];
    let names = ["request", "ns", "two threads to one", "the floor's", "lanes", "line", "Optane"];
    let mut lines = heading(&names);
    for (kind, workload) in KINDS {
        let cell = |subject: &str, place: &str, metric: &str, decimals: usize| {
            let row = results.row(&format!("{subject}|{place}|{metric}"));
            let found = row.and_then(|row| Some((row, results.number(row, "value")?)));
            found.map_or_else(
                || Cell::plain("-"),
                |(row, value)| Cell::of(&results.suite, format!("{value:.decimals$}"), &[row]),
            )
        };
        let (one, two) = (format!("{workload} t1"), format!("{workload} t2"));
        lines.push(Line::table(vec![
            Cell::plain(format!("{kind} ({workload})")),
            cell("everbyte-auto", &one, "time", 0),
            cell("everbyte-auto", &two, "rate_to_one_thread", 2),
            cell("floor", &two, "rate_to_one_thread", 2),
            cell("predicted", kind, "lanes_from", 0),
            cell("predicted", kind, "line_from", 0),
            cell("predicted, optane", kind, "medium_from", 1),
        ]));
    }
    lines
}

/// Workloads in which a rival takes less time than ours, the most lost first.
fn block_losses(results: &Results) -> Vec<Line> {
    const RIVALS: [(&str, &str); 8] = [
        ("everbyte-auto", "pmemblk-4096"),
        ("everbyte-auto", "pmemblk-512"),
        ("everbyte-auto", "tmpfs"),
        ("everbyte-auto", "ext4-direct"),
        ("everbyte-auto", "ext4-buffered"),
        ("nbd-everbyte", "nbdkit-memory"),
        ("nbd-everbyte", "nbdkit-file"),
        ("nbd-everbyte", "qemu-nbd"),
    ];
    let mut lost = Vec::new();
    for place in results.words("workload") {
        let time = |subject: &str| {
            let row = results.row(&format!("{subject}|{place}|time"))?;
            Some((results.number(row, "value")?, row))
        };
        for (subject, rival) in RIVALS {
            if let (Some(ours), Some(theirs)) = (time(subject), time(rival))
                && ours.0 > theirs.0
            {
                lost.push((ours.0 / theirs.0, place, rival, [ours.1, theirs.1]));
            }
        }
    }
    lost.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mut lines = heading(&["it loses at", "to", "takes as long"]);
    for (more, place, rival, rows) in lost {
        let more = Cell::of(&results.suite, format!("{more:.2}x"), &rows);
        lines.push(Line::table(vec![Cell::plain(place), Cell::plain(rival), more]));
    }
    lines
}

/// Media and ways to be durable of the comparison.
const MODES: [[&str; 2]; 6] = [
    ["dram", "checkpoint"],
    ["dram", "request"],
    ["pcm", "checkpoint"],
    ["pcm", "request"],
    ["pcm-banks", "checkpoint"],
    ["pcm-banks", "request"],
];

/// For each medium, the schemes that `rollback` loses to, then those that it beats, by the mean.
fn consistency_losses(results: &Results) -> Vec<Line> {
    let mut lines = Vec::new();
    for [medium, mode] in MODES {
        let mut means: Vec<(f64, &str, usize)> = Vec::new();
        for subject in results.words("subject") {
            let place = format!("{subject}|{medium}: all IOzone-like writes, {mode}");
            let row = results.row(&format!("{place}|time_to_rollback_mean"));
            let found = row.and_then(|row| Some((results.number(row, "value")?, subject, row)));
            means.extend(found.filter(|(_, subject, _)| *subject != "rollback"));
        }
        means.sort_by(|a, b| a.0.total_cmp(&b.0));
        let lost = means.partition_point(|(mean, ..)| *mean < 1.0);
        let mut cells = vec![Cell::plain(format!("- On {medium}, {mode}, rollback loses to "))];
        let list = |means: &[(f64, &str, usize)], cells: &mut Vec<Cell>| {
            for (at, (mean, subject, row)) in means.iter().enumerate() {
                let comma = if at > 0 { ", " } else { "" };
                cells.push(Cell::plain(format!("{comma}`{subject}` (")));
                cells.push(Cell::of(&results.suite, ratio(*mean), &[*row]));
                cells.push(Cell::plain(")"));
            }
            if means.is_empty() {
                cells.push(Cell::plain("none"));
            }
        };
        list(&means[..lost], &mut cells);
        cells.push(Cell::plain("; it is level with or beats "));
        list(&means[lost..], &mut cells);
        cells.push(Cell::plain("."));
        lines.push(Line::prose(cells));
    }
    lines
}

/// Least, mean and most over the matrix.
fn multiples(results: &Results, base: &str) -> Vec<Line> {
    let names = MODES.map(|mode| mode.join(", "));
    let mut lines = heading(&[&["scheme"][..], &names.each_ref().map(String::as_str)].concat());
    for subject in results.words("subject") {
        let mut cells = vec![Cell::plain(subject)];
        for [medium, mode] in MODES {
            let place = format!("{subject}|{medium}: all IOzone-like writes, {mode}");
            let rows: Vec<usize> = ["min", "mean", "max"]
                .iter()
                .filter_map(|part| results.row(&format!("{place}|{base}_{part}")))
                .collect();
            let values: Vec<String> =
                rows.iter().filter_map(|&row| results.number(row, "value").map(ratio)).collect();
            cells.push(Cell::of(&results.suite, values.join(" / "), &rows));
        }
        if cells[1..].iter().any(|cell| !cell.text.is_empty()) {
            lines.push(Line::table(cells));
        }
    }
    lines
}

/// Bytes of log, and in brackets all bytes that are stored.
fn bytes(results: &Results) -> Vec<Line> {
    const GROUPS: [[&str; 2]; 5] = [
        ["1 KiB", "dram: random write 1K in 4M, checkpoint"],
        ["4 KiB", "dram: random write 4K in 4M, checkpoint"],
        ["100 KiB", "dram: random write 100K in 4M, checkpoint"],
        ["append", "dram: append 100-500 B, checkpoint"],
        ["metadata", "dram: metadata 64-256 B, checkpoint"],
    ];
    let mut lines = heading(&["scheme", "1 KiB", "4 KiB", "100 KiB", "append", "metadata"]);
    for subject in results.words("subject") {
        let mut cells = vec![Cell::plain(subject)];
        for [_, place] in GROUPS {
            let rows: Vec<usize> = ["log_bytes_per_byte", "media_bytes_per_byte"]
                .iter()
                .filter_map(|metric| results.row(&format!("{subject}|{place}|{metric}")))
                .collect();
            let values: Vec<f64> =
                rows.iter().filter_map(|&row| results.number(row, "value")).collect();
            let text = match values[..] {
                [log, stored] => format!("{log:.2} ({stored:.2})"),
                _ => String::new(),
            };
            cells.push(Cell::of(&results.suite, text, &rows));
        }
        if cells[1..].iter().any(|cell| !cell.text.is_empty()) {
            lines.push(Line::table(cells));
        }
    }
    lines
}

/// A metric of TPC-C by scheme and mode: the median, with least and most.
fn tpcc(results: &Results, metric: &str) -> Vec<Line> {
    let places: Vec<&str> = results.words("workload");
    let has = |place: &&str| {
        let with = |subject| results.row(&format!("{subject}|{place}|{metric}")).is_some();
        results.words("subject").into_iter().any(with)
    };
    let places: Vec<&str> = places.into_iter().filter(has).collect();
    let mut lines = heading(&[&["scheme"][..], &places].concat());
    for subject in results.words("subject") {
        let mut cells = vec![Cell::plain(subject)];
        for place in &places {
            let row = results.row(&format!("{subject}|{place}|{metric}"));
            let found = row.and_then(|row| {
                let number = |column| results.number(row, column);
                let (value, least, most) = (number("value")?, number("least"), number("most"));
                let text = match (least, most) {
                    (Some(least), Some(most)) => {
                        format!("{} ({}-{})", ratio(value), ratio(least), ratio(most))
                    }
                    _ => ratio(value),
                };
                Some(Cell::of(&results.suite, text, &[row]))
            });
            cells.push(found.unwrap_or_else(|| Cell::plain("")));
        }
        if cells[1..].iter().any(|cell| !cell.text.is_empty()) {
            lines.push(Line::table(cells));
        }
    }
    lines
}
