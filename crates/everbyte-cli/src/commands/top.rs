//! `everbyte top`.
//!
//! Invariant: the terminal has its former state after every end except a kill.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use everbyte_control::{PoolMetrics, Request, Response, VolumeMetrics};
use everbyte_device::meter::{LATENCY_BUCKETS, latency_quantile_ns};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::stdio::stdin;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

use super::unexpected;
use crate::interrupt::Interrupt;
use crate::output::{self, Column, align};
use crate::session::{Access, ask};
use crate::size::{parse_duration, show_size};

const EXAMPLES: &str = "\
Examples:
  everbyte top /dev/shm/p                       q or Ctrl-C ends it
  everbyte top /dev/shm/p --once                averages since the server's start
  everbyte top /dev/shm/p --once --json | jq '.volumes[].requests'

P99 is the latency within the volume that 99 of 100 requests do not exceed, rounded up to 500 ns or one of its
doubles. LOG is the fill of the fullest lane of the log. HITS is the share of a cache's accesses with the page in the
cache.";

/// Show the load of a pool's volumes.
///
/// The table shows the rates since the previous update, and first the averages since the server's start. The
/// pool must be served.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// The pool's file or device.
    pool: PathBuf,
    /// Print one table with the averages since the server's start.
    #[arg(long)]
    once: bool,
    /// Print all figures as JSON: gauges, and counts since the server's start.
    #[arg(long, requires = "once")]
    json: bool,
    /// Time between two updates.
    #[arg(long, default_value = "2s", value_parser = parse_duration, value_name = "TIME")]
    interval: Duration,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let first = ask_metrics(args)?;
    if args.json {
        output::json(&first)?;
    } else if args.once {
        for line in table(&PoolMetrics::default(), &first) {
            output::line(line);
        }
    } else {
        watch(args, first)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn ask_metrics(args: &Args) -> anyhow::Result<PoolMetrics> {
    match ask(&args.pool, Access::Read, Request::Metrics)? {
        Response::Metrics(metrics) => Ok(*metrics),
        other => Err(unexpected(&other)),
    }
}

/// Shows tables until the user ends it.
fn watch(args: &Args, first: PoolMetrics) -> anyhow::Result<()> {
    let interrupt = Interrupt::catch()?;
    let screen = std::io::stdout().is_terminal().then(Screen::enter);
    // Averages first: an empty screen for an interval would look like a failure.
    let (mut before, mut now) = (PoolMetrics::default(), first);
    loop {
        let lines = table(&before, &now);
        match &screen {
            Some(screen) => screen.show(&lines),
            None => lines.iter().for_each(output::line),
        }
        if wait(args.interval, &interrupt, screen.is_some()) {
            return Ok(());
        }
        before = std::mem::replace(&mut now, ask_metrics(args)?);
        // A restarted server counts from zero.
        if now.uptime_ms < before.uptime_ms {
            before = PoolMetrics::default();
        }
    }
}

/// Waits for the next update. Returns true if the user ends the command.
fn wait(interval: Duration, interrupt: &Interrupt, has_keys: bool) -> bool {
    let timeout = Timespec::try_from(interval).ok();
    let mut keys = [PollFd::from_borrowed_fd(stdin(), PollFlags::IN)];
    let watched = if has_keys && stdin().is_terminal() { &mut keys[..] } else { &mut [][..] };
    // A signal ends the wait early.
    let pressed = poll(watched, timeout.as_ref()).unwrap_or(0) > 0;
    let mut key = [0];
    let is_quit = pressed
        && match rustix::io::read(stdin(), &mut key) {
            Ok(0) | Err(_) => true,
            Ok(_) => key[0].eq_ignore_ascii_case(&b'q'),
        };
    is_quit || interrupt.has_come()
}

/// The terminal's second screen, without echo of keys. A drop restores the terminal.
struct Screen {
    before: Option<Termios>,
}

impl Screen {
    fn enter() -> Self {
        let before = tcgetattr(stdin()).ok();
        if let Some(mut modes) = before.clone() {
            modes.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
            let _best_effort = tcsetattr(stdin(), OptionalActions::Now, &modes);
        }
        // The second screen keeps the contents of the first one, and the cursor is hidden.
        output::bytes(b"\x1b[?1049h\x1b[?25l");
        Self { before }
    }

    /// Replaces the contents by these lines, cut to the terminal's size.
    fn show(&self, lines: &[String]) {
        let size = tcgetwinsize(rustix::stdio::stdout()).ok();
        let (rows, columns) = match size {
            Some(size) if size.ws_row > 0 && size.ws_col > 0 => {
                (usize::from(size.ws_row), usize::from(size.ws_col))
            }
            _ => (24, 80),
        };
        let mut text = String::from("\x1b[H");
        for (at, line) in lines.iter().take(rows).enumerate() {
            // An end of line after the last row would scroll the screen.
            if at > 0 {
                text.push_str("\r\n");
            }
            text.extend(line.chars().take(columns));
            text.push_str("\x1b[K");
        }
        text.push_str("\x1b[J");
        output::bytes(text.as_bytes());
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        output::bytes(b"\x1b[?25h\x1b[?1049l");
        if let Some(before) = &self.before {
            let _best_effort = tcsetattr(stdin(), OptionalActions::Now, before);
        }
    }
}

/// Counts of a volume over all faces.
#[derive(Clone, Copy, Default)]
struct Counts {
    reads: u64,
    writes: u64,
    others: u64,
    read_bytes: u64,
    written_bytes: u64,
    errors: u64,
    hits: u64,
    misses: u64,
    buckets: [u64; LATENCY_BUCKETS],
}

impl Counts {
    fn of(volume: &VolumeMetrics) -> Self {
        let mut counts = Self::default();
        for found in &volume.requests {
            match found.operation.as_str() {
                "read" => {
                    counts.reads += found.requests;
                    counts.read_bytes += found.bytes;
                }
                "write" => {
                    counts.writes += found.requests;
                    counts.written_bytes += found.bytes;
                }
                _ => counts.others += found.requests,
            }
            for (sum, count) in counts.buckets.iter_mut().zip(&found.buckets) {
                *sum += count;
            }
        }
        counts.errors = volume.errors.iter().map(|found| found.count).sum();
        if let Some(cache) = &volume.cache {
            counts.hits = cache.hits_dram + cache.hits_scm;
            counts.misses = cache.misses;
        }
        counts
    }

    /// The counts since `before`.
    fn since(&self, before: &Self) -> Self {
        // A volume opened again counts from zero.
        let less = u64::saturating_sub;
        Self {
            reads: less(self.reads, before.reads),
            writes: less(self.writes, before.writes),
            others: less(self.others, before.others),
            read_bytes: less(self.read_bytes, before.read_bytes),
            written_bytes: less(self.written_bytes, before.written_bytes),
            errors: less(self.errors, before.errors),
            hits: less(self.hits, before.hits),
            misses: less(self.misses, before.misses),
            buckets: std::array::from_fn(|at| less(self.buckets[at], before.buckets[at])),
        }
    }
}

/// The lines of a screen: rates between the two moments, and gauges of the later one.
fn table(before: &PoolMetrics, now: &PoolMetrics) -> Vec<String> {
    let ms = now.uptime_ms.saturating_sub(before.uptime_ms).max(1);
    let rate = |count: u64| {
        let rate = u128::from(count) * 1000 / u128::from(ms);
        u64::try_from(rate).unwrap_or(u64::MAX)
    };
    let earlier: BTreeMap<u64, Counts> =
        before.volumes.iter().map(|volume| (volume.uid, Counts::of(volume))).collect();
    let none = Counts::default();
    let mut written_bytes = 0;
    let rows: Vec<_> = now
        .volumes
        .iter()
        .map(|volume| {
            let counts = Counts::of(volume).since(earlier.get(&volume.uid).unwrap_or(&none));
            written_bytes += counts.written_bytes;
            let p99 = latency_quantile_ns(&counts.buckets, (99, 100));
            [
                volume.name.clone(),
                volume.kind.clone(),
                volume.state.clone(),
                volume.clients.to_string(),
                rate(counts.reads).to_string(),
                rate(counts.writes).to_string(),
                rate(counts.others).to_string(),
                format!("{}/s", show_size(rate(counts.read_bytes))),
                format!("{}/s", show_size(rate(counts.written_bytes))),
                p99.map_or_else(dash, show_latency),
                percent(volume.log_used_bytes, volume.log_max_bytes),
                volume.dirty_lines.to_string(),
                percent(counts.hits, counts.hits + counts.misses),
                counts.errors.to_string(),
            ]
        })
        .collect();
    let columns = [
        Column::Left("VOLUME"),
        Column::Left("KIND"),
        Column::Left("STATE"),
        Column::Right("CLIENTS"),
        Column::Right("READS/S"),
        Column::Right("WRITES/S"),
        Column::Right("OTHER/S"),
        Column::Right("READ"),
        Column::Right("WRITTEN"),
        Column::Right("P99"),
        Column::Right("LOG"),
        Column::Right("DIRTY"),
        Column::Right("HITS"),
        Column::Right("ERRORS"),
    ];
    let mut lines = heading(before, now, written_bytes);
    lines.push(String::new());
    lines.extend(align(columns, &rows));
    lines
}

/// The lines about the whole pool.
fn heading(before: &PoolMetrics, now: &PoolMetrics, written_bytes: u64) -> Vec<String> {
    let low = if now.low_on_space { ", running out" } else { "" };
    let connections: u64 = now.servers.iter().map(|server| server.connections).sum();
    let stored = now.medium.bytes_stored.saturating_sub(before.medium.bytes_stored);
    // Hundredths, in whole numbers.
    let ratio = match u128::from(stored) * 100 / u128::from(written_bytes.max(1)) {
        _ if written_bytes == 0 => dash(),
        ratio => format!("{}.{:02}", ratio / 100, ratio % 100),
    };
    let mut lines = vec![
        format!("{}  up {} s", everbyte_text::escaped(&now.pool), now.uptime_ms / 1000),
        format!(
            "free {} of {}{low}  connections {connections}  media bytes per written byte {ratio}",
            show_size(now.free_bytes),
            show_size(now.size_bytes)
        ),
    ];
    if now.omitted_volumes > 0 {
        lines.push(format!("{} newer volumes are not shown", now.omitted_volumes));
    }
    lines
}

fn dash() -> String {
    "-".to_owned()
}

fn percent(part: u64, whole: u64) -> String {
    match u128::from(part) * 100 / u128::from(whole.max(1)) {
        _ if whole == 0 => dash(),
        percent => format!("{percent}%"),
    }
}

fn show_latency(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{} us", ns / 1_000),
        _ => format!("{} ms", ns / 1_000_000),
    }
}

#[cfg(test)]
mod tests {
    use everbyte_control::{CacheMetrics, ErrorMetrics, RequestMetrics};

    use super::*;

    fn metrics(uptime_ms: u64, factor: u64) -> PoolMetrics {
        let request = |operation: &str, bytes| RequestMetrics {
            face: "nbd".to_owned(),
            operation: operation.to_owned(),
            requests: 100 * factor,
            bytes: bytes * factor,
            buckets: vec![0, 0, 10 * factor],
            ..RequestMetrics::default()
        };
        let volume = VolumeMetrics {
            name: "disk".to_owned(),
            kind: "cache".to_owned(),
            state: "ok".to_owned(),
            uid: 7,
            clients: 2,
            log_used_bytes: 1,
            log_max_bytes: 4,
            dirty_lines: 12,
            requests: vec![request("read", 4096), request("write", 8192), request("flush", 0)],
            errors: vec![ErrorMetrics { count: 3 * factor, ..ErrorMetrics::default() }],
            cache: Some(CacheMetrics {
                hits_dram: 8 * factor,
                hits_scm: factor,
                misses: factor,
                ..CacheMetrics::default()
            }),
            ..VolumeMetrics::default()
        };
        let mut metrics = PoolMetrics { uptime_ms, volumes: vec![volume], ..Default::default() };
        metrics.medium.bytes_stored = 12_288 * factor;
        metrics
    }

    #[test]
    fn top_shows_rates_between_two_moments() {
        let lines = table(&metrics(1000, 1), &metrics(3000, 3));
        let row: Vec<_> = lines.last().unwrap().split_whitespace().collect();
        let wanted = "disk cache ok 2 100 100 100 4 KiB/s 8 KiB/s 2 us 25% 12 90% 6";
        assert_eq!(row.join(" "), wanted);
        assert!(lines[1].ends_with("written byte 1.50"), "{lines:?}");
    }

    #[test]
    fn top_without_requests_shows_dashes() {
        let lines = table(&metrics(1000, 1), &metrics(3000, 1));
        let row: Vec<_> = lines.last().unwrap().split_whitespace().collect();
        assert_eq!(row.join(" "), "disk cache ok 2 0 0 0 0 B/s 0 B/s - 25% 12 - 0");
        assert!(lines[1].ends_with("written byte -"), "{lines:?}");
    }
}
