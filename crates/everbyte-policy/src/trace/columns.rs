//! Names of columns, for text whose columns are in any order. Knows nothing of lines.

use std::fmt;
use std::str::FromStr;

use super::SECTOR_BYTES;
use crate::access::PAGE_BYTES;

/// Most columns that can be named.
const COLUMNS_MAX: usize = 16;
/// Bytes of a page.
pub(super) const PAGE: u64 = PAGE_BYTES as u64;

/// Meaning of a column. Numbers come with the ns or bytes of their unit.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Column {
    Nothing,
    Time(u64),
    /// With the number that is a read; the other one of 0 and 1 is a write.
    Op(u8),
    ScsiOp,
    File,
    Offset(u64),
    Len(u64),
    Key,
    Count,
    Rest,
}

const NAMES: [(&str, Column); 19] = [
    ("-", Column::Nothing),
    ("time_ns", Column::Time(1)),
    ("time_100ns", Column::Time(100)),
    ("time_us", Column::Time(1_000)),
    ("time_ms", Column::Time(1_000_000)),
    ("time_s", Column::Time(1_000_000_000)),
    ("op", Column::Op(0)),
    ("op_1_reads", Column::Op(1)),
    ("op_scsi", Column::ScsiOp),
    ("file", Column::File),
    ("offset", Column::Offset(1)),
    ("offset_sectors", Column::Offset(SECTOR_BYTES)),
    ("offset_pages", Column::Offset(PAGE)),
    ("len", Column::Len(1)),
    ("len_sectors", Column::Len(SECTOR_BYTES)),
    ("len_pages", Column::Len(PAGE)),
    ("key", Column::Key),
    ("count", Column::Count),
    ("...", Column::Rest),
];

impl Column {
    /// Returns true if one line has no use for both.
    fn excludes(self, other: Self) -> bool {
        let is_op = |column| matches!(column, Self::Op(_) | Self::ScsiOp);
        let is_place = |column| matches!(column, Self::Offset(_) | Self::Key);
        let are_alike = std::mem::discriminant(&self) == std::mem::discriminant(&other);
        // Unnamed columns may repeat. Two times, places or operations would contradict each other.
        self != Self::Nothing
            && (are_alike || is_op(self) && is_op(other) || is_place(self) && is_place(other))
    }
}

/// The columns of a trace, named as in `time_s,op,offset_sectors,len`; `-` is one that means nothing.
///
/// An offset is required, or a key, the name of an object. Without a time all requests are at 0,
/// without a file there is one file, without a length each request is for the whole page of its
/// start. A count is the number of requests of an object. `...` at the end stands for any further
/// columns.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Columns {
    /// Places in [`NAMES`]; [`COLUMNS_MAX`] bytes, because errors have formats in them.
    columns: [u8; COLUMNS_MAX],
    count: u8,
}

impl Columns {
    fn places(&self) -> impl Iterator<Item = usize> {
        self.columns[..usize::from(self.count)].iter().copied().map(usize::from)
    }

    pub(super) fn named(&self) -> impl Iterator<Item = Column> {
        self.places().map(|place| NAMES[place].1)
    }

    /// Returns true if a column distinguishes reads and writes.
    pub(crate) fn have_operations(&self) -> bool {
        self.named().any(|column| matches!(column, Column::Op(_) | Column::ScsiOp))
    }
}

impl fmt::Display for Columns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.places().map(|place| NAMES[place].0).collect();
        f.write_str(&names.join(","))
    }
}

impl FromStr for Columns {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut columns = Self { columns: [0; COLUMNS_MAX], count: 0 };
        for name in text.split(',').map(str::trim) {
            let found = (0..).zip(NAMES).find(|(_, (known, _))| *known == name);
            let (place, (_, column)) = found.ok_or_else(|| {
                let known = NAMES.map(|(name, _)| name).join(", ");
                format!("{name:?} is no column: there are {known}")
            })?;
            if columns.named().any(|other| other == Column::Rest) {
                return Err("no column can follow \"...\"".into());
            }
            if columns.named().any(|other| column.excludes(other)) {
                return Err(format!("{name:?} is the second column of its kind"));
            }
            let free = columns.columns.get_mut(usize::from(columns.count));
            *free.ok_or_else(|| format!("there are more than {COLUMNS_MAX} columns"))? = place;
            columns.count += 1;
        }
        let has = |wanted: fn(Column) -> bool| columns.named().any(wanted);
        let has_key = has(|column| column == Column::Key);
        if !has_key && !has(|column| matches!(column, Column::Offset(_))) {
            let names = "name offset, offset_sectors, offset_pages or key";
            return Err(format!("no column is an offset: {names}"));
        }
        if !has_key && has(|column| column == Column::Count) {
            return Err("only objects with a key have a count".into());
        }
        if has_key && has(|column| column == Column::File) {
            return Err("an object with a key lies in no file".into());
        }
        Ok(columns)
    }
}
