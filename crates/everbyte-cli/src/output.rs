//! Standard output, lines for people and JSON for programs, and complaints on standard error.
//!
//! Invariants: control and format characters of foreign text never reach a terminal, see
//! [`everbyte_text`]. If a reader closes the pipe (`| head`), the program ends quietly, with the
//! status of every other tool after a closed pipe. An unwritable standard error changes nothing.

use std::io::{self, IsTerminal, Write};

use everbyte_text::{escaped, escaped_json, escaped_lines};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rustix::fs::{FileType, OFlags, SeekFrom};
use serde::Serialize;

/// Exit status after a closed pipe: 128 + SIGPIPE.
const CLOSED_PIPE_STATUS: i32 = 141;

/// Size of a file from which on copying it shows a bar, in bytes.
const COPY_BYTES_MIN: u64 = 32 << 20;

/// Zeroes per write.
const ZEROES: usize = 256 << 10;

/// Writes one line. An end of a line within `text` is escaped: it is one of a name.
pub(crate) fn line(text: impl AsRef<str>) {
    // A program that cannot print its result has failed, whatever it did.
    if let Err(error) = try_line(text.as_ref()) {
        give_up(&error);
    }
}

/// Writes text of several lines.
pub(crate) fn text(text: impl AsRef<str>) {
    if let Err(error) = write_line(&escaped_lines(text.as_ref())) {
        give_up(&error);
    }
}

/// As [`line()`], for a program able to continue after standard output is closed.
///
/// # Errors
/// Standard output's.
pub(crate) fn try_line(text: &str) -> io::Result<()> {
    write_line(&escaped(text))
}

fn write_line(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.write_all(b"\n")?;
    // The reader of a pipe may wait for this line, for example for `ready`.
    out.flush()
}

/// Writes `text` and a line's end to standard error. If the write fails, the error has no receiver
/// and is dropped.
pub(crate) fn complain(text: impl AsRef<str>) {
    // An unwritable standard error must not change the exit status.
    let _unwritten = writeln!(io::stderr().lock(), "{}", escaped_lines(text.as_ref()));
}

/// Writes `value` as indented JSON.
///
/// # Errors
/// The value has no JSON form.
pub(crate) fn json(value: &impl Serialize) -> anyhow::Result<()> {
    text(escaped_json(&serde_json::to_string_pretty(value)?));
    Ok(())
}

/// Writes bytes as they are.
pub(crate) fn bytes(bytes: &[u8]) {
    let mut out = io::stdout().lock();
    if let Err(error) = out.write_all(bytes).and_then(|()| out.flush()) {
        give_up(&error);
    }
}

/// Standard output for bytes with holes. A regular file gets holes, and everything else zeroes.
pub(crate) struct SparseOutput {
    /// If standard output is a regular file: its length in bytes. Beyond it nothing has to be
    /// overwritten.
    old_len: Option<u64>,
    has_hole: bool,
}

impl SparseOutput {
    pub(crate) fn new() -> Self {
        let out = rustix::stdio::stdout();
        // The kernel writes appended bytes at the end, wherever the offset is, so a hole cannot be
        // skipped. Unknown flags count as appended.
        let is_appended =
            rustix::fs::fcntl_getfl(out).map_or(true, |flags| flags.contains(OFlags::APPEND));
        let found = rustix::fs::fstat(out).ok().filter(|found| {
            !is_appended && FileType::from_raw_mode(found.st_mode) == FileType::RegularFile
        });
        let old_len = found.and_then(|found| u64::try_from(found.st_size).ok());
        Self { old_len, has_hole: false }
    }

    /// Writes so many zeroes.
    pub(crate) fn hole(&mut self, len: u64) {
        let out = rustix::stdio::stdout();
        let place = rustix::fs::tell(out)
            .ok()
            // A hole within the old contents would keep old bytes. Beyond the old length there are
            // none.
            .filter(|place| self.old_len.is_some_and(|old_len| *place >= old_len));
        let end = place.and_then(|place| place.checked_add(len));
        if let Some(end) = end.filter(|end| i64::try_from(*end).is_ok()) {
            if let Err(error) = rustix::fs::seek(out, SeekFrom::Start(end)) {
                give_up(&error.into());
            }
            self.has_hole = true;
            return;
        }
        // A pipe, a terminal or old contents: the zeroes must be written.
        let zeroes = vec![0; ZEROES];
        let mut left = len;
        while left > 0 {
            let piece = usize::try_from(left).unwrap_or(ZEROES).min(ZEROES);
            bytes(&zeroes[..piece]);
            left -= piece as u64;
        }
    }

    /// Ends it. A hole at the end becomes part of the file.
    pub(crate) fn finish(self) {
        if !self.has_hole {
            return;
        }
        let out = rustix::stdio::stdout();
        let ended = rustix::fs::tell(out).and_then(|end| {
            let len = rustix::fs::fstat(out)?.st_size;
            // A hole at the end has moved the offset only. The length follows here.
            if i64::try_from(end).is_ok_and(|end| end > len) {
                rustix::fs::ftruncate(out, end)?;
            }
            Ok(())
        });
        if let Err(error) = ended {
            give_up(&error.into());
        }
    }
}

/// A column of a table: its heading, and the alignment of its cells.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Column {
    /// Words, aligned at their beginnings.
    Left(&'static str),
    /// Numbers, aligned at their ends.
    Right(&'static str),
}

/// Writes a table with a heading; each column is as wide as it must be.
pub(crate) fn table<const N: usize>(columns: [Column; N], rows: &[[String; N]]) {
    for text in align(columns, rows) {
        line(text);
    }
}

/// A bar over `len` steps, with a template of indicatif's; hidden if standard error is not a
/// terminal.
pub(crate) fn progress(template: &str, len: u64) -> ProgressBar {
    let target = match io::stderr().is_terminal() {
        true => ProgressDrawTarget::stderr(),
        false => ProgressDrawTarget::hidden(),
    };
    let bar = ProgressBar::with_draw_target(Some(len), target);
    let style = ProgressStyle::with_template(template);
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

/// A bar over the bytes of a copied file; hidden unless the copy takes a while.
pub(crate) fn copying(bytes: u64) -> ProgressBar {
    if bytes < COPY_BYTES_MIN {
        return ProgressBar::hidden();
    }
    progress("copying {bar:40} {bytes}/{total_bytes} {bytes_per_sec} {eta}", bytes)
}

/// The lines of a table with a heading, escaped for a terminal.
pub(crate) fn align<const N: usize>(columns: [Column; N], rows: &[[String; N]]) -> Vec<String> {
    let heading = columns.map(|(Column::Left(text) | Column::Right(text))| text.to_owned());
    let rows = rows.iter().map(|row| row.each_ref().map(|cell| escaped(cell).into_owned()));
    let rows: Vec<[String; N]> = std::iter::once(heading).chain(rows).collect();
    // In characters, after the escape: that is the width of the printed cell.
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: [usize; N] = std::array::from_fn(|column| width(column).unwrap_or(0));
    let lines = rows.iter().map(|row| {
        let cells =
            row.iter().zip(columns).zip(widths).map(|((cell, column), width)| match column {
                Column::Left(_) => format!("{cell:<width$}"),
                Column::Right(_) => format!("{cell:>width$}"),
            });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    });
    lines.collect()
}

fn give_up(error: &io::Error) -> ! {
    // A reader such as head has what it wants: no message.
    if error.kind() == io::ErrorKind::BrokenPipe {
        std::process::exit(CLOSED_PIPE_STATUS);
    }
    tracing::error!("cannot write to standard output: {error}");
    std::process::exit(1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_align() {
        let columns = [Column::Left("NAME"), Column::Right("SIZE")];
        let rows = [["a".into(), "10 MiB".into()]];
        assert_eq!(align(columns, &rows), ["NAME    SIZE", "a     10 MiB"]);
    }
}
