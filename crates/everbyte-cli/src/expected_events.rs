//! Events of the log without a need for action, although their crate calls them errors.
//!
//! The kernel refuses an answer with ENOENT if it no longer waits for it. The cause is an
//! interrupted program, an aborted mount, or an interrupt after the answer to its request. fuser
//! logs each refusal as an error. Any other refusal of an answer stays an error.

use std::fmt::{self, Write};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// The target of events logged by crates through `log`.
const LOG_TARGET: &str = "log";
/// The prefix of fuser's text for an answer refused by the kernel.
const REFUSED_ANSWER: &str = "Failed to send FUSE reply: ";

/// Drops the events without a need for action.
pub(crate) struct ExpectedEvents;

impl<S: Subscriber> Layer<S> for ExpectedEvents {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let metadata = event.metadata();
        // The texts of an event are formatted only for the few that can match.
        if *metadata.level() != Level::ERROR || metadata.target() != LOG_TARGET {
            return true;
        }
        let mut found = LogEvent::default();
        event.record(&mut found);
        !(found.module.starts_with("fuser") && is_answer_to_nobody(&found.text))
    }
}

/// Returns true if this text of fuser reports an answer the kernel no longer waits for.
fn is_answer_to_nobody(text: &str) -> bool {
    let gone = rustix::io::Errno::NOENT;
    // fuser gives no typed error here. An unknown text stays an error.
    text.strip_prefix(REFUSED_ANSWER)
        .is_some_and(|error| error == std::io::Error::from(gone).to_string())
}

/// An event of `log`.
#[derive(Default)]
struct LogEvent {
    text: String,
    module: String,
}

impl Visit for LogEvent {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "log.target" => value.clone_into(&mut self.module),
            "message" => value.clone_into(&mut self.text),
            _ => {}
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            // Writing to a string cannot fail.
            let _ = write!(self.text, "{value:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    /// Counts the passed events.
    struct Count<'c>(&'c AtomicUsize);

    impl<S: Subscriber> Layer<S> for Count<'static> {
        fn on_event(&self, _: &Event<'_>, _: Context<'_, S>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn only_unawaited_answers_are_dropped() {
        static SEEN: AtomicUsize = AtomicUsize::new(0);
        let gone = std::io::Error::from_raw_os_error(2);
        let subscriber = tracing_subscriber::registry().with(Count(&SEEN)).with(ExpectedEvents);
        tracing::subscriber::with_default(subscriber, || {
            let seen = || SEEN.swap(0, Ordering::Relaxed);
            // As tracing-log makes events of records.
            tracing::error!(target: "log", { log.target = "fuser::reply" }, "{REFUSED_ANSWER}{gone}");
            assert_eq!(seen(), 0);
            tracing::error!(target: "log", { log.target = "other" }, "{REFUSED_ANSWER}{gone}");
            assert_eq!(seen(), 1, "of another crate");
            let invalid = std::io::Error::from_raw_os_error(22);
            tracing::error!(target: "log", { log.target = "fuser::reply" }, "{REFUSED_ANSWER}{invalid}");
            assert_eq!(seen(), 1, "another reason");
            tracing::error!(target: "log", { log.target = "fuser::reply" }, "{gone}");
            tracing::error!("{REFUSED_ANSWER}{gone}");
            assert_eq!(seen(), 2, "other texts, and own ones");
        });
    }
}
