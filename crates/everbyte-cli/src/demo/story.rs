//! The words of the demonstration.

use std::io::{IsTerminal, stdout};

use everbyte_control::CheckStatus;

use super::ledger::Counts;
use super::measure::Throughput;
use super::{CrashPart, FilesPart, PoolPart, Report};
use crate::output::{self, Column};
use crate::size::show_size;

/// Prints the story, or prints nothing.
pub(super) struct Story {
    aloud: bool,
    bold: bool,
}

impl Story {
    pub(super) fn new(aloud: bool) -> Self {
        Self { aloud, bold: stdout().is_terminal() }
    }

    fn say(&self, text: &str) {
        if self.aloud {
            output::text(text);
        }
    }

    fn heading(&self, text: &str) {
        let (on, off) = if self.bold { ("\x1b[1m", "\x1b[0m") } else { ("", "") };
        self.say(&format!("\n{on}{text}{off}"));
    }

    pub(super) fn opening(&self, pool: &PoolPart) {
        self.say(
            "Storage-class memory keeps its contents like a disk and is read and written like\n\
             memory. Programs expect disks. Everbyte turns such memory into disks that any\n\
             program can use, and that are never found half-written after a crash.",
        );
        let survives = match pool.survives.as_str() {
            "power" => "It would survive a power cut.",
            _ => "DRAM stands in for the real thing: it survives a dying server, not a power cut.",
        };
        self.heading("1. Take some memory");
        self.say(&format!(
            "   A pool of {} in {} ({}).\n   {survives}",
            show_size(pool.size_bytes),
            pool.folder,
            pool.medium
        ));
    }

    pub(super) fn serving(&self, pid: u32) {
        self.say(&format!(
            "   A server (process {pid}) offers two disks in it over NBD, a protocol that Linux,\n   \
             virtual machines and many tools speak."
        ));
    }

    pub(super) fn files(&self, files: &FilesPart) {
        self.heading(&format!("2. Put a file system on the first disk ({})", files.kind));
        self.say(&format!(
            "   {} files, {}, written by the fatfs library.",
            files.files,
            show_size(files.bytes)
        ));
        self.say(&format!("   Read back: {}.", verdict(files.before_crash)));
    }

    pub(super) fn killed(&self, counts: &Counts) {
        self.heading("3. Kill the server while it writes");
        self.say(&format!(
            "   Two writers filled the second disk with 4 KiB writes and kept a ledger of every\n   \
             answer: {} writes done, {} flushes (\"make it safe now\"), {} writes that were to be\n   \
             safe at once. Then kill -9, with {} writes under way.",
            counts.acknowledged, counts.flushes, counts.with_fua, counts.unanswered
        ));
    }

    pub(super) fn after_crash(&self, crash: &CrashPart, files: &FilesPart) {
        self.heading("4. Start it again and look");
        self.say(&format!(
            "   The server was back after {:.0} ms: {} records of its undo log put back what was\n   \
            not yet durable.",
            crash.back_after_ms, crash.records_undone
        ));
        let found = &crash.found;
        self.say(&format!(
            "   {} blocks compared with the ledger. Durable according to it: {}; of these lost: {}.\n   \
            Half-written: {}. Writes that were not durable, undone whole: {}.",
            found.blocks, found.durable, found.lost, found.torn, found.undone
        ));
        self.say(&format!("   The file system on the first disk: {}.", verdict(files.after_crash)));
    }

    pub(super) fn check(&self, check: &CheckStatus) {
        for problem in &check.problems {
            self.say(&format!("   PROBLEM: {problem}"));
        }
        if check.clean {
            let blocks = check.used_blocks + check.free_blocks;
            self.say(&format!(
                "   Check of the pool: each of {blocks} blocks is free or has exactly one owner."
            ));
        }
    }

    pub(super) fn throughput(&self, rows: &[Throughput]) {
        self.heading("5. What does that cost?");
        self.say("   4 KiB writes at random places, one thread, measured just now:");
        if !self.aloud {
            return;
        }
        let columns = [
            Column::Left(""),
            Column::Right("writes/s"),
            Column::Right("MiB/s"),
            Column::Right("of DRAM"),
        ];
        let cells = rows.iter().map(|row| {
            [
                format!("   {}", row.what),
                format!("{:.0}", row.writes_per_s),
                format!("{:.0}", row.bytes_per_s / 1024.0 / 1024.0),
                format!("{:.0} %", row.percent_of_floor),
            ]
        });
        output::table(columns, &cells.collect::<Vec<_>>());
    }

    pub(super) fn end(&self, report: &Report) {
        let text = if report.ok {
            "Everything that was promised was there."
        } else {
            "NOT EVERYTHING WAS AS PROMISED. See above; please report this."
        };
        self.heading(&format!("{text} ({:.1} s; nothing was left behind.)", report.seconds));
    }
}

fn verdict(verdict: super::Verdict) -> String {
    let bytes = if verdict.identical { "every byte as written" } else { "BYTES DIFFER" };
    let check = if verdict.checked { ", and every file is intact" } else { ", and FILES DIFFER" };
    format!("{bytes}{check}")
}
