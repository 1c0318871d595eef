//! Text with columns in any order, as [`Columns`] names them.
//!
//! Columns stand between commas, semicolons, or white space, whichever the first line has. Columns
//! behind the last one that is named mean nothing. A first line with words where all numbers should
//! be is taken for the columns' names.

use super::columns::{Column, Columns, PAGE};
use super::decode::{Item, LineFormat};
use super::error::Problem;
use super::fields::{Commas, decimal, next, number, scaled, trimmed};
use super::files::FileNames;
use super::{Request, RequestOp};

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
        let is_name = |(column, field): (&Column, &str)| match column {
            Column::Time(_) | Column::Offset(_) | Column::Len(_) => is_word(field),
            Column::Nothing | Column::Op | Column::File => true,
        };
        fields.len() >= self.columns.len() && self.columns.iter().zip(fields).all(is_name)
    }

    fn request<'a>(
        &self,
        mut fields: impl Iterator<Item = &'a str>,
        files: &mut FileNames,
    ) -> Result<Request, Problem> {
        let op = RequestOp::Read;
        let mut request = Request { time_ns: 0, op, file: 0, offset: 0, len: 0 };
        let (mut file, mut len) = ("disk", None);
        for column in &self.columns {
            match *column {
                Column::Nothing => _ = next(&mut fields, "column")?,
                Column::Time(1) => request.time_ns = number(next(&mut fields, "time")?, "time")?,
                Column::Time(unit) => {
                    request.time_ns = decimal(next(&mut fields, "time")?, unit, "time")?;
                }
                Column::Op => request.op = operation(next(&mut fields, "operation")?)?,
                Column::File => file = next(&mut fields, "file")?,
                Column::Offset(unit) => {
                    let offset = number(next(&mut fields, "offset")?, "offset")?;
                    request.offset = scaled(offset, unit, "offset")?;
                }
                Column::Len(unit) => {
                    let text = next(&mut fields, "length")?;
                    len = Some(scaled(number(text, "length")?, unit, "length")?);
                }
            }
        }
        match len {
            Some(len) => request.len = len,
            None => (request.offset, request.len) = (request.offset / PAGE * PAGE, PAGE),
        }
        request.file = files.number(file)?;
        Ok(request)
    }
}

impl LineFormat for ColumnLines {
    fn item(&mut self, line: &str, files: &mut FileNames) -> Result<Item, Problem> {
        let is_first = self.separator.is_none();
        let separator = *self.separator.get_or_insert_with(|| match line {
            line if line.contains(',') => Separator::Comma,
            line if line.contains(';') => Separator::Semicolon,
            _ => Separator::Space,
        });
        let request = match separator {
            Separator::Comma => self.request(Commas::of(line), files),
            Separator::Semicolon => self.request(line.split(';'), files),
            Separator::Space => self.request(line.split_whitespace(), files),
        };
        match request {
            Err(Problem::Field { .. }) if is_first && self.has_names(line, separator) => {
                Ok(Item::Nothing)
            }
            request => request.map(Item::Request),
        }
    }
}

/// Returns true if there is more in `text` than a sign, and it does not begin as numbers do, right or wrong.
fn is_word(text: &str) -> bool {
    let text = trimmed(text);
    let digits = text.strip_prefix(['-', '+', '.']).unwrap_or(text);
    digits.starts_with(|first: char| !first.is_ascii_digit())
}

fn operation(text: &str) -> Result<RequestOp, Problem> {
    const WORDS: [(&[&str], RequestOp); 5] = [
        (&["R", "read", "0"], RequestOp::Read),
        (&["W", "write", "1"], RequestOp::Write),
        (&["F", "flush"], RequestOp::Flush),
        (&["T", "trim"], RequestOp::Trim),
        (&["Z", "zero"], RequestOp::Zero),
    ];
    let is = |(words, _): &&(&[&str], RequestOp)| {
        words.iter().any(|word| word.eq_ignore_ascii_case(text))
    };
    let wanted = "R, W, F, T, Z, read, write, flush, trim, zero, 0 (read) or 1 (write)";
    let found = WORDS.iter().find(is).map(|(_, op)| *op);
    found.ok_or_else(|| Problem::field("operation", text, wanted))
}
