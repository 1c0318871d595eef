//! Tables of the suites of files and of the memory extension.

use anyhow::{Result, bail};

use super::cell::{Cell, Line, heading, ratio};
use super::grid::{Grid, grid};
use super::results::Results;

/// The lines of a view of the suites `files`, `mount`, `index`, `swap` and `swap-paper`.
///
/// # Errors
/// There is no such view.
pub(super) fn view(name: &str, results: &Results) -> Result<Vec<Line>> {
    let lines = match (results.suite.as_str(), name) {
        ("files", "operations") => grid(results, &OPERATIONS, |_| true),
        ("files", "counts") => grid(results, &OPERATION_COUNTS, |_| true),
        ("files", "fsync") => grid(results, &FSYNC, |_| true),
        ("mount", "calls") => grid(results, &MOUNT_CALLS, |_| true),
        ("mount", "workloads") => grid(results, &WORKLOADS, |_| true),
        ("index", "workloads") => grid(results, &INDEXES, |_| true),
        ("index", "shares") => grid(results, &SHARES, |_| true),
        ("swap" | "swap-paper", "targets") => targets(results),
        ("swap", "paging") => grid(results, &PAGING, is_pattern),
        ("swap", "ft") => grid(results, &FT, is_whole_ft),
        ("swap", "ft-pages") => grid(results, &FT_PAGES, is_whole_ft),
        ("swap-paper", "ft") => grid(results, &PAPER_FT, is_whole_ft),
        ("swap-paper", "ft-pages") => grid(results, &PAPER_FT_PAGES, is_whole_ft),
        ("swap", "slots") => {
            grid(results, &SLOTS, |place| place.ends_with(" t1") && place.contains(" full, "))
        }
        ("swap", "crowded") => grid(results, &CROWDED, |place| place.contains(", swap ")),
        ("swap", "serving") => grid(results, &SERVING, |place| place.starts_with("serving: ")),
        (suite, name) => bail!("no view {suite}/{name}"),
    };
    Ok(lines)
}

/// Nanoseconds, and the multiple of the floor's.
const OPERATIONS: Grid = Grid {
    first: "operation",
    subjects: &["floor", "everbyte", "tmpfs", "ext4", "volume"],
    metrics: &["time", "time_to_floor"],
    write: |cell| match cell {
        [_, to_floor, ..] => format!(", {}x", ratio(*to_floor)),
        _ => String::new(),
    },
    has_spread: true,
};

const OPERATION_COUNTS: Grid = Grid {
    first: "operation",
    subjects: &["everbyte"],
    metrics: &["fences", "log_bytes", "bytes_stored"],
    write: |cell| match cell {
        [fences, log, stored, ..] => format!("{fences:.2}, {log:.0}, {stored:.0}"),
        _ => String::new(),
    },
    has_spread: false,
};

/// Microseconds of an append that is made durable.
const FSYNC: Grid = Grid {
    first: "operation",
    subjects: &["everbyte", "tmpfs", "ext4"],
    metrics: &["p50", "p99"],
    write: |cell| match cell {
        [half, most, ..] => format!("{half:.1}, {most:.1}"),
        _ => String::new(),
    },
    has_spread: false,
};

const MOUNTS: &[&str] = &["everbyte", "null", "plain", "passthrough_ll"];

/// Nanoseconds of a call, and the multiple of the file system's that does nothing.
const MOUNT_CALLS: Grid = Grid {
    first: "call",
    subjects: MOUNTS,
    metrics: &["time", "time_to_null"],
    write: |cell| match cell {
        [_, to_null, ..] => format!(", {}x", ratio(*to_null)),
        _ => String::new(),
    },
    has_spread: true,
};

/// Operations a second, as multiples of the plain file system's and of passthrough_ll's.
const WORKLOADS: Grid = Grid {
    first: "workload",
    subjects: MOUNTS,
    metrics: &["rate", "rate_to_plain", "rate_to_passthrough"],
    write: |cell| match cell {
        [_, to_plain, to_passthrough, ..] => {
            format!(", {}x, {}x", ratio(*to_plain), ratio(*to_passthrough))
        }
        [_, to_plain] => format!(", {}x", ratio(*to_plain)),
        _ => String::new(),
    },
    has_spread: true,
};

/// Thousands of operations a second, and the ratio to the tree of PMFS.
const INDEXES: Grid = Grid {
    first: "workload",
    subjects: INDEX_KINDS,
    metrics: &["rate", "rate_to_pmfs_radix"],
    write: |cell| match cell {
        [rate, to_pmfs, ..] => format!("{:.1} ({})", rate / 1e3, ratio(*to_pmfs)),
        [rate] => format!("{:.1}", rate / 1e3),
        [] => String::new(),
    },
    has_spread: false,
};

const INDEX_KINDS: &[&str] = &["direct", "pmfs-radix", "page-cache-radix", "b+", "csb+", "window"];

/// Percent of an operation's time that its look-ups of inode tables take at least.
const SHARES: Grid = Grid {
    first: "workload",
    subjects: INDEX_KINDS,
    metrics: &["index_share"],
    write: |cell| cell.first().map_or_else(String::new, |share| format!("{share:.2}")),
    has_spread: false,
};

const PAGERS: &[&str] = &[
    "region",
    "region-untracked",
    "region-no-read-ahead",
    "region-transparent",
    "swap-loop",
    "swap-loop-cluster0",
    "swap-zram",
    "swap-zram-cluster0",
];

/// Nanoseconds of processor time for a page in and out, and of time for an access.
const PAGING: Grid = Grid {
    first: "pattern",
    subjects: PAGERS,
    metrics: &["cpu_per_page_in", "time"],
    write: |cell| match cell {
        [cpu, time, ..] => format!("{cpu:.0}, {time:.0}"),
        _ => String::new(),
    },
    has_spread: false,
};

const SOLVERS: &[&str] = &[
    "dram",
    "region",
    "region-order8",
    "region-transparent",
    "region-direct",
    "region-on-flash",
    "swap-loop",
    "swap-loop-cluster0",
    "swap-loop-swappiness1",
    "swap-loop-deadline",
    "swap-loop-tuned",
    "swap-zram",
    "swap-zram-cluster0",
    "swap-zram-swappiness1",
];

/// Those of FT as the paper ran it, and the paper's own.
const PAPER_SOLVERS: &[&str] = &[
    "dram",
    "region",
    "region-order8",
    "region-transparent",
    "region-direct",
    "swap-loop",
    "swap-zram",
    "paper-slot-tree",
    "paper-stock-swap",
];

/// Returns true for an access pattern in a swap space that has room.
fn is_pattern(place: &str) -> bool {
    place.starts_with("paging: ") && !place.contains(", swap ")
}

/// Seconds, and seconds of processor time.
const FT: Grid = Grid {
    first: "FT",
    subjects: SOLVERS,
    metrics: &["seconds", "cpu"],
    write: |cell| match cell {
        [seconds, cpu, ..] => format!("{seconds:.2} ({cpu:.2})"),
        [seconds] => format!("{seconds:.0}"),
        [] => String::new(),
    },
    has_spread: false,
};

/// Thousands of pages in and out, and of faults.
const FT_PAGES: Grid = Grid {
    first: "FT",
    subjects: SOLVERS,
    metrics: &["pages_in", "pages_out", "faults"],
    write: |cell| match cell {
        [pages_in, out, faults, ..] => {
            format!("{:.0}, {:.0}, {:.0}", pages_in / 1e3, out / 1e3, faults / 1e3)
        }
        _ => String::new(),
    },
    has_spread: false,
};

const PAPER_FT: Grid = Grid { subjects: PAPER_SOLVERS, ..FT };

const PAPER_FT_PAGES: Grid = Grid { subjects: PAPER_SOLVERS, ..FT_PAGES };

/// Returns true for FT as a whole, and not for a part of its work.
fn is_whole_ft(place: &str) -> bool {
    place.starts_with("FT.") && !place.contains(": ")
}

/// Nanoseconds to take a slot, and what was looked at for it.
const SLOTS: Grid = Grid {
    first: "swap space",
    subjects: &["linux-3.14-linear", "order8", "order64", "free-stack", "hibitset", "roaring"],
    metrics: &["time", "visits"],
    write: |cell| match cell {
        [time, visits, ..] => format!("{time:.0}, {visits:.1}"),
        [time] => format!("{time:.0}"),
        [] => String::new(),
    },
    has_spread: false,
};

/// Percent of the processor time that searches for slots take.
const CROWDED: Grid = Grid {
    first: "swap space",
    subjects: &["linux-3.14-linear", "order8", "order64"],
    metrics: &["slot_search_share"],
    write: |cell| cell.first().map_or_else(String::new, |share| format!("{share:.1}")),
    has_spread: false,
};

/// Thousands of requests a second, and microseconds that one of a hundred takes longer than.
const SERVING: Grid = Grid {
    first: "server",
    subjects: &[
        "dram",
        "everbyte-run",
        "swap-loop",
        "swap-loop-cluster0",
        "swap-zram",
        "swap-zram-cluster0",
    ],
    metrics: &["rate", "p99"],
    write: |cell| match cell {
        [rate, p99, ..] => format!("{:.1}, {p99:.0}", rate / 1e3),
        _ => String::new(),
    },
    has_spread: false,
};

/// Every target and claim of the paper: what it compares, the ratio, and its bound where it has one.
fn targets(results: &Results) -> Vec<Line> {
    let mut lines = heading(&["a region's figure to the best of others", "ratio", "at most", ""]);
    for place in results.words("workload") {
        let row = |metric: &str| {
            let row = results.row(&format!("region|{place}|{metric}"))?;
            Some((row, results.number(row, "value")?))
        };
        let Some((at, value)) = row("ratio") else { continue };
        let bound = row("ratio_at_most");
        let verdict = bound.map_or("", |(_, most)| if value <= most { "met" } else { "missed" });
        let most = bound.map_or_else(
            || Cell::plain(""),
            |(at, most)| Cell::of(&results.suite, ratio(most), &[at]),
        );
        let ratio = Cell::of(&results.suite, ratio(value), &[at]);
        lines.push(Line::table(vec![Cell::plain(place), ratio, most, Cell::plain(verdict)]));
    }
    lines
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::read;
    use super::*;

    const GRIDS: [(&str, &Grid); 14] = [
        ("files", &OPERATIONS),
        ("files", &OPERATION_COUNTS),
        ("files", &FSYNC),
        ("mount", &MOUNT_CALLS),
        ("mount", &WORKLOADS),
        ("index", &INDEXES),
        ("index", &SHARES),
        ("swap", &PAGING),
        ("swap", &FT),
        ("swap", &FT_PAGES),
        ("swap-paper", &PAPER_FT),
        ("swap", &SLOTS),
        ("swap", &CROWDED),
        ("swap", &SERVING),
    ];

    /// A column without a subject of its name would be left out without a word.
    #[test]
    fn every_column_is_a_subject_of_the_published_run() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let published = read(root).unwrap().published;
        let mut compared = 0;
        for (suite, grid) in GRIDS {
            let Some(results) = published.get(suite) else { continue };
            let subjects = results.words("subject");
            for column in grid.subjects {
                assert!(subjects.contains(column), "{suite}: {} has no {column}", grid.first);
                compared += 1;
            }
        }
        assert!(compared > 20, "{compared} columns");
    }
}
