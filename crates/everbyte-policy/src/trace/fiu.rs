//! The block traces of Florida International University (SRCMap, IODedup): lines of
//! `time pid process sector sectors W|R major minor hash`.
//!
//! The time is ns; sectors have 512 bytes; the hash is MD5 of the data, hexadecimal, and may be left
//! out. The name of a process may have spaces. Source: the README of the traces' distribution (SNIA
//! IOTTA, trace set 390; Verma et al., "SRCMap", FAST 2010; Koller, Rangaswami, "I/O Deduplication",
//! FAST 2010).

use super::decode::{Item, LineFormat};
use super::error::Problem;
use super::fields::{next, number, read_or_write, scaled};
use super::files::FileNames;
use super::{Request, SECTOR_BYTES};

/// Fields behind the process's name, without the hash.
const TAIL_FIELDS: usize = 5;

/// Lines of the traces of Florida International University.
#[derive(Default)]
pub(crate) struct Fiu {
    /// Room for the name of a device.
    name: String,
}

impl LineFormat for Fiu {
    fn item(&mut self, line: &str, files: &mut FileNames) -> Result<Item, Problem> {
        let mut fields = line.split_whitespace();
        let time_ns = number(next(&mut fields, "time")?, "time")?;
        number(next(&mut fields, "process's number")?, "process's number")?;
        next(&mut fields, "process")?;
        let tail: Vec<&str> = fields.collect();
        let is_operation = |place: usize| {
            let field = tail.len().checked_sub(place).and_then(|place| tail.get(place));
            field.is_some_and(|field| read_or_write(field, "").is_ok())
        };
        let hash_fields = match (is_operation(3), is_operation(4)) {
            (true, _) => 0,
            (false, true) => 1,
            (false, false) => {
                let shown = tail.get(2).copied().unwrap_or_default();
                return Err(Problem::field(
                    "operation",
                    shown,
                    "R or W, before the last 2 or 3 fields",
                ));
            }
        };
        if let Some(hash) = tail.last().filter(|_| hash_fields == 1)
            && !hash.bytes().all(|byte| byte.is_ascii_hexdigit())
        {
            return Err(Problem::field("hash", hash, "a hexadecimal number"));
        }
        let first = tail.len().checked_sub(TAIL_FIELDS + hash_fields);
        let first = first.ok_or(Problem::Missing { field: "sector and number of sectors" })?;
        let [sector, sectors, op, major, minor] = tail[first..first + TAIL_FIELDS] else {
            return Err(Problem::Missing { field: "sector and number of sectors" });
        };
        let op = read_or_write(op, "operation")?;
        number(major, "major number")?;
        number(minor, "minor number")?;
        self.name.clear();
        self.name.extend([major, ",", minor]);
        Ok(Item::Request(Request {
            time_ns,
            op,
            file: files.number(&self.name)?,
            offset: scaled(number(sector, "sector")?, SECTOR_BYTES, "sector")?,
            len: scaled(number(sectors, "number of sectors")?, SECTOR_BYTES, "number of sectors")?,
        }))
    }
}
