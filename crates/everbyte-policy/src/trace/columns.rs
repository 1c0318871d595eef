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
    Op,
    File,
    Offset(u64),
    Len(u64),
}

const NAMES: [(&str, Column); 13] = [
    ("-", Column::Nothing),
    ("time_ns", Column::Time(1)),
    ("time_us", Column::Time(1_000)),
    ("time_ms", Column::Time(1_000_000)),
    ("time_s", Column::Time(1_000_000_000)),
    ("op", Column::Op),
    ("file", Column::File),
    ("offset", Column::Offset(1)),
    ("offset_sectors", Column::Offset(SECTOR_BYTES)),
    ("offset_pages", Column::Offset(PAGE)),
    ("len", Column::Len(1)),
    ("len_sectors", Column::Len(SECTOR_BYTES)),
    ("len_pages", Column::Len(PAGE)),
];

impl Column {
    /// Returns true if one line has no use for both.
    fn excludes(self, other: Self) -> bool {
        self != Self::Nothing && std::mem::discriminant(&self) == std::mem::discriminant(&other)
    }
}

/// The columns of a trace, named as in `time_s,op,offset_sectors,len`; `-` is one that means nothing.
///
/// An offset is needed. Without a time all requests are at 0, without a file there is one, without
/// a length each request is of the whole page in which it begins.
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

    /// Returns true if a column says what is read and what is written.
    pub(crate) fn have_operations(&self) -> bool {
        self.named().any(|column| column == Column::Op)
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
            if columns.named().any(|other| column.excludes(other)) {
                return Err(format!("{name:?} is the second column of its kind"));
            }
            let free = columns.columns.get_mut(usize::from(columns.count));
            *free.ok_or_else(|| format!("there are more than {COLUMNS_MAX} columns"))? = place;
            columns.count += 1;
        }
        match columns.named().any(|column| matches!(column, Column::Offset(_))) {
            true => Ok(columns),
            false => {
                Err("no column is an offset: name offset, offset_sectors or offset_pages".into())
            }
        }
    }
}
