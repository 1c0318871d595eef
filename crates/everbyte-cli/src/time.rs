//! Times as people read them.

use everbyte_control::TimeNs;

/// A time, to the second, in UTC.
pub(crate) fn show_time(TimeNs(ns): TimeNs) -> String {
    let seconds = i64::try_from(ns.div_euclid(1_000_000_000));
    everbyte_report::utc(seconds.unwrap_or(if ns < 0 { i64::MIN } else { i64::MAX }))
}
