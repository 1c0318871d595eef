//! The key-value traces of Meta's CacheLib, whose first line names the fields.
//!
//! The fields `key`, `op`, `size`, `op_count` and `key_size` are needed; `op_time` is s; others, such as
//! `cache_hits` and `ttl`, mean nothing here. Their order differs between the years. A key is an object
//! of both sizes; a line stands for `op_count` operations, a million at most. GET and GET_LEASE read, SET and SET_LEASE
//! write, DELETE deletes. Source: CacheLib's documentation, "Evaluating SSD hardware for Facebook
//! workloads", and `cachebench/workload/KVReplayGenerator.h`.

use super::decode::{Item, LineFormat};
use super::error::Problem;
use super::fields::{Commas, number, scaled, trimmed};
use super::files::FileNames;
use super::objects::{Object, id_of_key, times};
use super::operations;
use super::skipped::SkippedKind;

/// Most fields of a line.
const FIELDS_MAX: usize = 64;

/// Places of the fields of a line.
#[derive(Clone, PartialEq, Eq)]
struct Places {
    fields: usize,
    key: usize,
    op: usize,
    size: usize,
    op_count: usize,
    key_size: usize,
    op_time: Option<usize>,
}

impl Places {
    /// Returns the places in a line that names the needed fields.
    fn of(line: &str) -> Option<Self> {
        if !line.contains("op_count") {
            return None;
        }
        let names: Vec<&str> = Commas::of(line).take(FIELDS_MAX + 1).map(trimmed).collect();
        let place = |name: &str| names.iter().position(|other| *other == name);
        let places = Self {
            fields: names.len(),
            key: place("key")?,
            op: place("op")?,
            size: place("size")?,
            op_count: place("op_count")?,
            key_size: place("key_size")?,
            op_time: place("op_time"),
        };
        (names.len() <= FIELDS_MAX).then_some(places)
    }
}

/// Lines of Meta's key-value traces.
#[derive(Default)]
pub(crate) struct Kvcache {
    places: Option<Places>,
}

/// Returns true if `line` names the fields of this format.
pub(crate) fn is_heading(line: &str) -> bool {
    Places::of(line).is_some()
}

impl LineFormat for Kvcache {
    fn item(&mut self, line: &str, _: &mut FileNames) -> Result<Item, Problem> {
        if let Some(places) = Places::of(line) {
            self.places = Some(places);
            return Ok(Item::Skipped(SkippedKind::Heading));
        }
        let wanted = "names of fields: key, op, size, op_count and key_size at least";
        let places =
            self.places.as_ref().ok_or_else(|| Problem::field("first line", line, wanted))?;
        let fields: Vec<&str> = Commas::of(line).take(FIELDS_MAX + 1).map(trimmed).collect();
        if fields.len() != places.fields {
            let wanted = "as many fields as the first line names";
            return Err(Problem::field("number of fields", &fields.len().to_string(), wanted));
        }
        let op = operations::of_key(fields[places.op])?;
        let size = number(fields[places.size], "size")?;
        let key_size = number(fields[places.key_size], "key_size")?;
        let times = times(fields[places.op_count], "op_count")?;
        let time = places.op_time.map_or(Ok(0), |place| number(fields[place], "op_time"))?;
        let time_ns = scaled(time, 1_000_000_000, "op_time")?;
        let too_large = || Problem::TooLarge { field: "size", value: size.to_string() };
        let bytes = key_size.checked_add(size).ok_or_else(too_large)?;
        let id = id_of_key(fields[places.key]);
        Ok(Item::of_object(Object { time_ns, op, id, bytes, times }))
    }
}
