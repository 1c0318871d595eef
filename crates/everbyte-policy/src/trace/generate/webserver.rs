//! Filebench's webserver personality: ten whole files read, then an append to the common log.
//!
//! Source: Filebench, `workloads/webserver.f`: files of 16 KB on average, read whole, and a log
//! that 16 KB at most are appended to. Every file is as likely to be read there, and here.

use std::io;

use super::Sink;
use super::script::{File, Log, PAGE, Script};

/// The paper's footprint, 39,540 KB, in pages.
pub(super) const PAGES: u64 = 39_540 / 4;
/// The paper's mean write.
pub(super) const WRITE_BYTES: u64 = 3035;

/// Pages of the log.
const LOG_PAGES: u64 = 384;
/// Files read before the log is appended to.
const READ_FILES: u64 = 10;

pub(super) fn webserver(seed: u64, requests: u64, sink: Sink<'_>) -> io::Result<()> {
    let script = &mut Script::new(seed, WRITE_BYTES, sink);
    let mut log = Log::new(script, "weblog", LOG_PAGES);
    let files = fileset(script, PAGES - LOG_PAGES);
    while script.requests() < requests {
        for _ in 0..READ_FILES {
            let number = script.random.below(files.len() as u64);
            let (file, bytes) = files[usize::try_from(number).unwrap_or(0)];
            script.read(file, 0, bytes)?;
        }
        let len = match script.wants_large_writes() {
            true => script.random.between(12 << 10, 16 << 10),
            false => script.random.between(1 << 10, 8 << 10),
        };
        log.append(script, len)?;
    }
    script.read_the_rest()
}

/// Makes files and their sizes in bytes: a sum of four uniform draws, so that few are very small or
/// very large, with a mean of four pages.
fn fileset(script: &mut Script<'_>, mut pages_left: u64) -> Vec<(File, u64)> {
    let mut files = Vec::new();
    while pages_left > 0 {
        // The sum of four uniform numbers: sizes around 16 KB, seldom near the ends.
        let bytes: u64 = (0..4).map(|_| script.random.between(64, 2 * PAGE - 64)).sum();
        let pages = bytes.div_ceil(PAGE).min(pages_left);
        let file = script.file(&format!("html/{:05}", files.len()), pages);
        files.push((file, bytes.min(pages * PAGE)));
        pages_left -= pages;
    }
    files
}
