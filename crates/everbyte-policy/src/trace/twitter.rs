//! The cache traces of Twitter: lines of `timestamp,key,key size,value size,client,operation,TTL`.
//!
//! The timestamp is s; sizes are bytes. A key is an object of both sizes, and may have commas. get and
//! gets read it, delete deletes it, the others write it. Source: the README of the traces
//! (twitter/cache-trace; Yang, Yue, Rashmi, "A large scale analysis of hundreds of in-memory cache
//! clusters at Twitter", OSDI 2020).

use super::decode::{Item, LineFormat};
use super::error::Problem;
use super::fields::{next, number, scaled};
use super::files::FileNames;
use super::objects::{Object, id_of_key};
use super::operations;

/// Fields behind the key.
const TAIL_FIELDS: usize = 5;

/// Lines of Twitter's cache traces.
pub(crate) struct Twitter;

impl LineFormat for Twitter {
    fn item(&mut self, line: &str, _: &mut FileNames) -> Result<Item, Problem> {
        let (time, rest) = line.split_once(',').ok_or(Problem::Missing { field: "key" })?;
        let time = number(time, "timestamp")?;
        let mut fields = rest.rsplitn(TAIL_FIELDS + 1, ',');
        number(next(&mut fields, "TTL")?, "TTL")?;
        let op = operations::of_key(next(&mut fields, "operation")?)?;
        number(next(&mut fields, "client")?, "client")?;
        let value_bytes = number(next(&mut fields, "value size")?, "value size")?;
        let key_bytes = number(next(&mut fields, "key size")?, "key size")?;
        let key = next(&mut fields, "key")?;
        let too_large =
            || Problem::TooLarge { field: "value size", value: value_bytes.to_string() };
        let bytes = key_bytes.checked_add(value_bytes).ok_or_else(too_large)?;
        let time_ns = scaled(time, 1_000_000_000, "timestamp")?;
        Ok(Item::of_object(Object { time_ns, op, id: id_of_key(key), bytes, times: 1 }))
    }
}
