//! Times in messages: signed, and with all of ext4's range.
//!
//! No integer of 64 bits has the whole range in nanoseconds. JSON numbers do: a negative time is a signed number of 64 bits,
//! every other one an unsigned one.

use std::fmt;

use serde::de::{Deserializer, Error, Visitor};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};

/// A time in nanoseconds since 1970. A message carries `i64::MIN` to `u64::MAX`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct TimeNs(pub i128);

impl Serialize for TimeNs {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // Unsigned first: times after 2262 do not fit into a signed number of nanoseconds.
        if let Ok(ns) = u64::try_from(self.0) {
            return serializer.serialize_u64(ns);
        }
        let out_of_range = |_| serde::ser::Error::custom("the time does not fit into a message");
        serializer.serialize_i64(i64::try_from(self.0).map_err(out_of_range)?)
    }
}

impl<'de> Deserialize<'de> for TimeNs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TimeVisitor)
    }
}

struct TimeVisitor;

impl Visitor<'_> for TimeVisitor {
    type Value = TimeNs;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number of nanoseconds")
    }

    fn visit_i64<E: Error>(self, ns: i64) -> Result<TimeNs, E> {
        Ok(TimeNs(ns.into()))
    }

    fn visit_u64<E: Error>(self, ns: u64) -> Result<TimeNs, E> {
        Ok(TimeNs(ns.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_passes_a_message_with_its_sign() {
        for ns in [i128::from(i64::MIN), -1, 0, i128::from(i64::MAX) + 1, i128::from(u64::MAX)] {
            let text = serde_json::to_string(&TimeNs(ns)).unwrap();
            assert_eq!(text, ns.to_string());
            assert_eq!(serde_json::from_str::<TimeNs>(&text).unwrap(), TimeNs(ns));
        }
        assert!(serde_json::to_string(&TimeNs(1 << 64)).is_err());
        for text in ["1.5", "18446744073709551616", "-9223372036854775809", "\"1\"", "null"] {
            assert!(serde_json::from_str::<TimeNs>(text).is_err(), "{text}");
        }
    }
}
