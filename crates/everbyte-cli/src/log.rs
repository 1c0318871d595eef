//! The log on standard error: its level, its escapes, and its limit of repeated lines.
//!
//! Each field goes through [`everbyte_text::escaped`], because clients, devices and file names
//! bring foreign text into it. A server logs the first warning or error of each cause, counts the
//! later ones, and logs the count after each interval. A cause is a place in the code with its
//! fields, without numbers and quoted text. Invariants: one place has at most [`CAUSES_MAX`]
//! causes, and all further causes count as one. The length of the log is therefore bounded against
//! clients. A line is dropped only if it is counted.

use std::collections::HashMap;
use std::fmt::{self, Debug, Write};
use std::io::IsTerminal;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use everbyte_text::escaped;
use parking_lot::{Condvar, Mutex};
use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::fmt::format;
use tracing_subscriber::layer::{Context, Filter, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use crate::expected_events::ExpectedEvents;

/// Interval for counting lines of one cause before logging the count.
const INTERVAL: Duration = Duration::from_secs(10);
/// Maximum number of separately counted causes of one place in the code.
const CAUSES_MAX: usize = 16;
/// The target of counts. Counts are not limited.
const COUNTS: &str = "everbyte::counts";
/// Fields to distinguish clients and requests, but not causes.
const NO_CAUSE: [&str; 4] = ["id", "peer", "pid", "request"];

/// The limit of a server's log.
static LIMIT: OnceLock<Arc<Limit>> = OnceLock::new();

/// Logs to standard error: at the level of `RUST_LOG`, else by the number of `-v`.
pub(crate) fn start(verbose: u8, is_server: bool) {
    let level = match verbose + u8::from(is_server) {
        0 => "warn",
        1 => "info",
        2 => "debug",
        _ => "trace",
    };
    // RUST_LOG replaces --verbose completely: the user asked for certain crates.
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    let fields = format::debug_fn(|writer, field, value| match field.name() {
        "message" => write!(writer, "{}", escaped(&format!("{value:?}"))),
        // The place of an event of `log`. The head of the line shows it.
        name if name.starts_with("log.") => Ok(()),
        name => write!(writer, "{name}={}", escaped(&format!("{value:?}"))),
    });
    let lines = tracing_subscriber::fmt::layer()
        .fmt_fields(fields.delimited(" "))
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        // It would report a failed write of a line by eprintln!, and eprintln! panics then.
        .log_internal_errors(false);
    // A command ends soon, and its user sees each line. Only the log of a server can fill a disk.
    let limit = is_server.then(|| Arc::clone(LIMIT.get_or_init(Arc::default)));
    let lines = lines.with_filter(LimitFilter(limit));
    tracing_subscriber::registry().with(filter).with(lines).with(ExpectedEvents).init();
}

/// Logs the counts of the dropped lines, at the end of the program.
pub(crate) fn finish() {
    if let Some(limit) = LIMIT.get() {
        // The lock ends here: a blocked standard error must not block other threads that log.
        let counts = limit.state.lock().counts(None);
        counts.iter().for_each(Count::log);
    }
}

/// The filter of lines; without a limit, all pass.
struct LimitFilter(Option<Arc<Limit>>);

impl<S: Subscriber> Filter<S> for LimitFilter {
    fn enabled(&self, _: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        true
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        let (Some(limit), metadata) = (&self.0, event.metadata()) else { return true };
        // The counts themselves must pass, or the limit would count its own lines.
        if *metadata.level() > Level::WARN || metadata.target() == COUNTS {
            return true;
        }
        limit.admit(event)
    }
}

/// The recently logged lines of a server, by cause.
#[derive(Default)]
struct Limit {
    state: Mutex<State>,
    /// Signalled when there is something to wait for.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    causes: HashMap<Cause, Repeats>,
    /// True while a thread waits to log counts.
    has_thread: bool,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Cause {
    place: Identifier,
    /// `None` for the causes beyond [`CAUSES_MAX`].
    fields: Option<String>,
}

struct Repeats {
    level: Level,
    since: Instant,
    count: u64,
    /// The last dropped line.
    last: String,
}

/// A due count.
struct Count {
    level: Level,
    count: u64,
    seconds: u64,
    last: String,
}

impl Count {
    fn log(&self) {
        let Self { level, count, seconds, last } = self;
        match *level {
            Level::ERROR => tracing::error!(
                target: COUNTS, "{count} more errors like this in {seconds} s: {last}"
            ),
            _ => tracing::warn!(
                target: COUNTS, "{count} more warnings like this in {seconds} s: {last}"
            ),
        }
    }
}

impl State {
    /// Returns true for the first event of its cause in an interval; counts any other one.
    fn admit(&mut self, level: Level, mut cause: Cause, line: String) -> bool {
        if !self.causes.contains_key(&cause) {
            let of_place = self.causes.keys().filter(|known| known.place == cause.place);
            // Hostile texts must not fill the map: further causes of this place share one entry.
            if of_place.count() >= CAUSES_MAX {
                cause.fields = None;
            }
        }
        if let Some(known) = self.causes.get_mut(&cause) {
            known.count += 1;
            known.last = line;
            return false;
        }
        let repeats = Repeats { level, since: Instant::now(), count: 0, last: String::new() };
        self.causes.insert(cause, repeats);
        true
    }

    /// Takes the due counts, or all without a moment. Forgets a cause without new lines.
    fn counts(&mut self, due: Option<Instant>) -> Vec<Count> {
        let mut counts = Vec::new();
        self.causes.retain(|_, repeats| {
            let is_due = due.is_none_or(|due| repeats.since + INTERVAL <= due);
            // A due cause without a repetition is forgotten, so that its next line is logged
            // immediately.
            if !is_due || repeats.count == 0 {
                return !is_due;
            }
            counts.push(Count {
                level: repeats.level,
                count: std::mem::take(&mut repeats.count),
                seconds: repeats.since.elapsed().as_secs(),
                last: std::mem::take(&mut repeats.last),
            });
            repeats.since = Instant::now();
            true
        });
        counts
    }
}

impl Limit {
    fn admit(self: &Arc<Self>, event: &Event<'_>) -> bool {
        let mut fields = Fields::default();
        event.record(&mut fields);
        // Before the lock: the texts of an event are formatted without it.
        let cause = Cause { place: event.metadata().callsite(), fields: Some(fields.cause) };
        let mut state = self.state.lock();
        let is_admitted = state.admit(*event.metadata().level(), cause, fields.line);
        if !state.has_thread {
            let limit = Arc::clone(self);
            let thread = std::thread::Builder::new().name("log-counts".to_owned());
            // Without a thread the counts come at the end.
            state.has_thread = thread.spawn(move || limit.log_counts()).is_ok();
        }
        is_admitted
    }

    /// Logs counts until nothing is left to count.
    fn log_counts(&self) {
        let mut state = self.state.lock();
        while let Some(first) = state.causes.values().map(|repeats| repeats.since).min() {
            let now = Instant::now();
            // Releases the lock while it waits. A new cause ends later than this one and needs no
            // signal.
            if first + INTERVAL > now {
                self.changed.wait_until(&mut state, first + INTERVAL);
                continue;
            }
            let counts = state.counts(Some(now));
            // Without the lock: a blocked standard error must not block other threads that log.
            parking_lot::MutexGuard::unlocked(&mut state, || counts.iter().for_each(Count::log));
        }
        // Under the lock: the next admitted line starts another thread.
        state.has_thread = false;
    }
}

/// The fields of an event: as a line, and as the key of its cause.
#[derive(Default)]
struct Fields {
    line: String,
    cause: String,
}

impl Fields {
    fn add(&mut self, field: &Field, text: &str, cause: &str) {
        let space = if self.line.is_empty() { "" } else { " " };
        let name = field.name();
        let (name, sign) = if name == "message" { ("", "") } else { (name, "=") };
        let _cannot_fail = write!(self.line, "{space}{name}{sign}{text}");
        if !NO_CAUSE.contains(&name) {
            let _cannot_fail = write!(self.cause, "{name}={cause} ");
        }
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let text = format!("{value:?}");
        self.add(field, &text, &without_details(&text));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, &format!("{value:?}"), value);
    }
}

/// Text without its numbers and its quoted parts.
fn without_details(text: &str) -> String {
    // Quoted names, addresses and numbers change with each line of one cause.
    let (mut is_quoted, mut is_hex) = (false, false);
    let mut kept = String::with_capacity(text.len());
    let mut before = ' ';
    for c in text.chars() {
        if c == '"' && before != '\\' {
            is_quoted = !is_quoted;
        }
        is_hex = (before == '0' && c == 'x') || (is_hex && c.is_ascii_hexdigit());
        if !is_quoted && !is_hex && !c.is_ascii_digit() {
            kept.push(c);
        }
        before = c;
    }
    kept
}

impl fmt::Debug for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Limit")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Counts the passed lines.
    #[derive(Clone, Default)]
    struct PassedLines(Arc<AtomicUsize>);

    impl<S: Subscriber> Layer<S> for PassedLines {
        fn on_event(&self, _: &Event<'_>, _: Context<'_, S>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn passed(limit: &Arc<Limit>, log: impl FnOnce()) -> usize {
        let passed = PassedLines::default();
        let filter = LimitFilter(Some(Arc::clone(limit)));
        let subscriber = tracing_subscriber::registry().with(passed.clone().with_filter(filter));
        tracing::subscriber::with_default(subscriber, log);
        passed.0.load(Ordering::Relaxed)
    }

    #[test]
    fn each_cause_is_logged_once_and_counted() {
        let limit = Arc::default();
        let failed = |backing: &str, error: String| {
            tracing::warn!(backing, %error, "the backing device failed");
        };
        let lines = passed(&limit, || {
            for number in 0..1000 {
                failed("a", format!("media error at {number}+4096: {number:#x}"));
                failed("b", format!("media error at {number}+4096: {number:#x}"));
                failed("a", "no space left".to_owned());
                tracing::info!("not limited");
            }
        });
        assert_eq!(lines, 3 + 1000);
        let counts = limit.state.lock().counts(None);
        assert_eq!(counts.iter().map(|count| count.count).collect::<Vec<_>>(), [999; 3]);
        assert!(counts.iter().all(|count| count.last.contains("the backing device failed")));
        assert!(limit.state.lock().counts(None).is_empty(), "nothing came again");
    }

    #[test]
    fn causes_of_one_place_are_bounded() {
        let limit = Arc::default();
        let lines = passed(&limit, || {
            for number in 0..500_u32 {
                let name: String =
                    number.to_string().bytes().map(|digit| char::from(digit + 17)).collect();
                tracing::warn!(peer = number, "dropped: there is no export {name}");
                tracing::warn!(peer = number, "dropped: {:?} is no export", name);
            }
        });
        assert_eq!(lines, CAUSES_MAX + 1 + 1);
        let counted: u64 = limit.state.lock().counts(None).iter().map(|count| count.count).sum();
        assert_eq!(counted + lines as u64, 1000);
    }
}
