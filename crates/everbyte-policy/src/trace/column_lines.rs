//! Text with columns in any order, as [`Columns`] names them.
//!
//! Commas, semicolons, or white space separate the columns; the first line decides. A line has
//! exactly the named columns, or more if the last one is `...`. A first line with words in place of
//! all numbers holds the columns' names.

use super::columns::{Column, Columns, PAGE};
use super::decode::{Item, LineFormat};
use super::error::Problem;
use super::fields::{Commas, decimal, end, next, number, scaled, trimmed};
use super::files::FileNames;
use super::objects::{self, Object, id_of_key};
use super::skipped::SkippedKind;
use super::{Request, RequestOp, operations};

/// Characters between columns.
#[derive(Clone, Copy)]
enum Separator {
    Comma,
    Semicolon,
    Space,
}

/// Lines with given columns.
pub(crate) struct ColumnLines {
    columns: Vec<Column>,
    /// Known since the first line.
    separator: Option<Separator>,
}

impl ColumnLines {
    pub(crate) fn new(columns: Columns) -> Self {
        Self { columns: columns.named().collect(), separator: None }
    }

    /// Returns true if `line` has all columns, and a word in each column of numbers.
    fn has_names(&self, line: &str, separator: Separator) -> bool {
        let fields: Vec<&str> = match separator {
            Separator::Comma => Commas::of(line).collect(),
            Separator::Semicolon => line.split(';').collect(),
            Separator::Space => line.split_whitespace().collect(),
        };
        // Only columns of numbers tell a heading from a request: any word can be a file.
        let is_name = |(column, field): (&Column, &str)| match column {
            Column::Time(_) | Column::Offset(_) | Column::Len(_) | Column::Count => is_word(field),
            _ => true,
        };
        let is_complete = match self.columns.last() {
            Some(Column::Rest) => fields.len() + 1 >= self.columns.len(),
            _ => fields.len() == self.columns.len(),
        };
        let has_numbers = self.columns.iter().any(|column| {
            matches!(column, Column::Time(_) | Column::Offset(_) | Column::Len(_) | Column::Count)
        });
        is_complete && has_numbers && self.columns.iter().zip(fields).all(is_name)
    }

    fn item_of<'a>(
        &self,
        mut fields: impl Iterator<Item = &'a str>,
        files: &mut FileNames,
    ) -> Result<Item, Problem> {
        let op = RequestOp::Read;
        let mut request = Request { time_ns: 0, op, file: 0, offset: 0, len: 0 };
        let (mut file, mut len, mut key, mut times) = ("disk", None, None, 1);
        let mut is_open = false;
        for column in &self.columns {
            match *column {
                Column::Nothing => _ = next(&mut fields, "column")?,
                Column::Time(1) => request.time_ns = number(next(&mut fields, "time")?, "time")?,
                Column::Time(100) => {
                    let time = number(next(&mut fields, "time")?, "time")?;
                    request.time_ns = scaled(time, 100, "time")?;
                }
                Column::Time(unit) => {
                    request.time_ns = decimal(next(&mut fields, "time")?, unit, "time")?;
                }
                Column::Op(read) => {
                    request.op = operations::of_any(next(&mut fields, "operation")?, read)?;
                }
                Column::ScsiOp => request.op = operations::of_scsi(next(&mut fields, "command")?)?,
                Column::File => file = next(&mut fields, "file")?,
                Column::Offset(unit) => {
                    let offset = number(next(&mut fields, "offset")?, "offset")?;
                    request.offset = scaled(offset, unit, "offset")?;
                }
                Column::Len(unit) => {
                    let text = next(&mut fields, "length")?;
                    len = Some(scaled(number(text, "length")?, unit, "length")?);
                }
                Column::Key => key = Some(next(&mut fields, "key")?),
                Column::Count => times = objects::times(next(&mut fields, "count")?, "count")?,
                Column::Rest => is_open = true,
            }
        }
        if !is_open {
            end(&mut fields, "as many columns as are named")?;
        }
        if let Some(key) = key {
            let (time_ns, op, bytes) = (request.time_ns, request.op, len.unwrap_or(PAGE));
            let id = id_of_key(key);
            return Ok(Item::of_object(Object { time_ns, op, id, bytes, times }));
        }
        match len {
            Some(len) => request.len = len,
            // Without a length the trace counts pages, so the access is the whole page.
            None => (request.offset, request.len) = (request.offset / PAGE * PAGE, PAGE),
        }
        request.file = files.number(file)?;
        Ok(Item::Request(request))
    }
}

impl LineFormat for ColumnLines {
    fn item(&mut self, line: &str, files: &mut FileNames) -> Result<Item, Problem> {
        let is_first = self.separator.is_none();
        // The first line decides for all: a later comma can be part of a file's name.
        let separator = *self.separator.get_or_insert_with(|| match line {
            line if line.contains(',') => Separator::Comma,
            line if line.contains(';') => Separator::Semicolon,
            _ => Separator::Space,
        });
        let item = match separator {
            Separator::Comma => self.item_of(Commas::of(line), files),
            Separator::Semicolon => self.item_of(line.split(';'), files),
            Separator::Space => self.item_of(line.split_whitespace(), files),
        };
        match item {
            Err(Problem::Field { .. }) if is_first && self.has_names(line, separator) => {
                Ok(Item::Skipped(SkippedKind::Heading))
            }
            item => item,
        }
    }
}

/// Returns true if there is more in `text` than a sign, and it does not begin as numbers do, right or wrong.
fn is_word(text: &str) -> bool {
    let text = trimmed(text);
    let digits = text.strip_prefix(['-', '+', '.']).unwrap_or(text);
    digits.starts_with(|first: char| !first.is_ascii_digit())
}
