//! The results for people: a table for each workload.

use std::io::{self, Write};

use crate::rows::{Results, Row, metric};

/// Metrics that a line shows, and the words after their values.
const SHOWN: [(&str, &str); 47] = [
    (metric::COUNTED_RATE, "/s counted"),
    (metric::COUNTED_TO_BACKING, "x backing counted"),
    (metric::BOUND, "x at most"),
    (metric::TO_BACKING, "x backing timed"),
    (metric::HITS, "% hits"),
    (metric::HITS_SIMULATED, "% simulated"),
    ("scm_bytes", "B scm"),
    ("counted_p50", "us p50"),
    ("counted_p99", "us p99"),
    (metric::TO_FLOOR, "x floor"),
    (metric::CPU_TO_FLOOR, "x floor's cpu"),
    ("rate_to_tmpfs", "x tmpfs"),
    ("cpu_rate_to_tmpfs", "x tmpfs by cpu"),
    ("time_to_volume", "x volume"),
    ("cpu_to_volume", "x volume's cpu"),
    ("p50", "us p50"),
    ("p99", "us p99"),
    ("p99_to_ext4", "of ext4's p99"),
    ("durable_time", "ns durable"),
    ("allocations", "allocations"),
    (metric::TO_PLACES, "x its places"),
    (metric::TO_NULL, "of null"),
    (metric::SCALING, "x one thread"),
    (metric::MEDIA_BYTES, "B stored/B"),
    (metric::SERVER_CPU, "ns server"),
    ("fences", "fences"),
    ("log_bytes", "B log"),
    ("time_to_none", "x none"),
    ("time_to_rollback", "x rollback"),
    ("time_to_rollback_min", "x rollback at least"),
    ("time_to_rollback_mean", "x on average"),
    ("time_to_rollback_max", "x at most"),
    ("tpmc", "tpmC"),
    ("tpmc_to_none", "of none"),
    ("tpmc_of_cpu_to_none", "of none by CPU time"),
    ("cpu_per_page_in", "ns of processor a page in"),
    ("process_cpu_per_page_in", "of the process"),
    ("ratio", "x"),
    ("dram_limit", "MiB of DRAM allowed"),
    ("dram_peak", "MiB at most"),
    ("pages_in", "pages in"),
    ("pages_out", "out"),
    ("fork", "ms for the fork"),
    ("save", "ms for saving"),
    ("slot_search_share", "% in searches"),
    ("best_threshold", "% is best; 50% takes"),
    ("time_at_50_to_best", "x as long"),
];

/// Writes every workload with its subjects.
///
/// # Errors
/// Standard output's.
pub(crate) fn write(results: &Results, out: &mut impl Write) -> io::Result<()> {
    let mut workloads: Vec<&str> = Vec::new();
    for row in &results.rows {
        if !workloads.contains(&row.workload.as_str()) {
            workloads.push(&row.workload);
        }
    }
    for workload in workloads {
        writeln!(out, "\n{workload}")?;
        let mut subjects: Vec<&str> = Vec::new();
        for row in results.rows.iter().filter(|row| row.workload == workload) {
            if !subjects.contains(&row.subject.as_str()) {
                subjects.push(&row.subject);
            }
        }
        for subject in subjects {
            writeln!(out, "  {}", line(results, subject, workload))?;
        }
    }
    Ok(())
}

fn line(results: &Results, subject: &str, workload: &str) -> String {
    let find = |name| results.find(subject, workload, name);
    if let Some(row) = find(metric::SKIPPED) {
        return format!("{subject:<16} -  {}", row.note.as_deref().unwrap_or("not measured"));
    }
    let mut text = format!("{subject:<16}");
    if let Some(row) = find(metric::TIME) {
        let spread = row.spread.map_or_else(String::new, |s| format!("{:.0}-{:.0}", s.min, s.max));
        text += &format!("{:>10.0} ns ({spread:>13})", row.value.unwrap_or(0.0));
    }
    if let Some(row) = find(metric::RATE) {
        text += &format!("{:>9.1} k/s", row.value.unwrap_or(0.0) / 1e3);
    }
    for (name, words) in SHOWN {
        if let Some(value) = find(name).and_then(|row: &Row| row.value) {
            text += &match name {
                metric::SERVER_CPU
                | metric::COUNTED_RATE
                | "scm_bytes"
                | "durable_time"
                | "p50"
                | "p99"
                | "counted_p50"
                | "counted_p99"
                | "log_bytes"
                | "cpu_per_page_in"
                | "process_cpu_per_page_in"
                | "tpmc"
                | "pages_in"
                | "pages_out"
                | "best_threshold" => {
                    format!("  {value:.0} {words}")
                }
                _ => format!("  {value:.2} {words}"),
            };
        }
    }
    if let Some(note) = find("ratio").and_then(|row| row.note.as_deref()) {
        text += &format!("  {note}");
    }
    for name in ["media_bytes", "seconds"] {
        if let Some(row) = find(name) {
            text += &format!("  {:.3} {}", row.value.unwrap_or(0.0), row.unit);
        }
    }
    text
}
