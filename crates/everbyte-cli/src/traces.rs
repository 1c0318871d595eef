//! Output files for traces: plain, or compressed by the name's ending.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use everbyte_path::{Access, Kind, create, look, open};
use everbyte_pool::format::MAGIC;
use everbyte_server::recording::RecordOutput;
use zstd::stream::write::Encoder;

/// Compression level of zstd: its own default.
const ZSTD_LEVEL: i32 = 3;

/// A file, compressed or not.
pub(crate) enum Output<W: Write> {
    Plain(W),
    Zstd(Encoder<'static, W>),
}

/// Checks a file before its replacement: it must not be a pool or an element of `inputs`, traces or
/// plans.
///
/// # Errors
/// It is one.
pub(crate) fn check_replaceable(path: &Path, inputs: &[PathBuf]) -> anyhow::Result<()> {
    check_no_pool(path)?;
    let Ok(place) = look(path) else { return Ok(()) };
    let is_it =
        |input: &PathBuf| look(input).is_ok_and(|input| input.identity() == place.identity());
    // By identity: a link or another path can lead to the input.
    if inputs.iter().any(is_it) {
        anyhow::bail!("{} is what is read: write elsewhere", path.display());
    }
    Ok(())
}

fn check_no_pool(path: &Path) -> anyhow::Result<()> {
    // Anything else has no bytes to lose.
    let mut magic = [0; MAGIC.len()];
    let opened = open(path, Access::Read, &[Kind::File, Kind::BlockDevice]);
    let read = opened.and_then(|(mut file, _)| file.read_exact(&mut magic));
    if read.is_ok() && magic == MAGIC {
        anyhow::bail!("{} is a pool, and would be replaced: write elsewhere", path.display());
    }
    Ok(())
}

impl Output<File> {
    /// Makes a file at `path` and replaces an existing one; compressed if the name ends in `.zst`.
    ///
    /// # Errors
    /// The file cannot be made.
    pub(crate) fn create(path: &Path) -> anyhow::Result<Self> {
        // Before the creation, which truncates the file.
        check_no_pool(path)?;
        let context = || format!("cannot write to {}", path.display());
        let file = create(path, false).with_context(context)?;
        Self::over(file, path).with_context(context)
    }
}

impl<W: Write> Output<W> {
    /// Makes an output to `out`, compressed if `path` ends in `.zst`.
    ///
    /// # Errors
    /// The compressor could not be made.
    pub(crate) fn over(out: W, path: &Path) -> io::Result<Self> {
        Ok(match path.extension().is_some_and(|ending| ending == "zst") {
            true => Self::Zstd(Encoder::new(out, ZSTD_LEVEL)?),
            false => Self::Plain(out),
        })
    }

    /// Writes the end mark. It shows a reader the completeness of the output.
    ///
    /// # Errors
    /// The errors of the file.
    pub(crate) fn finish(self) -> io::Result<W> {
        match self {
            Self::Plain(out) => Ok(out),
            Self::Zstd(encoder) => encoder.finish(),
        }
    }
}

impl RecordOutput for Output<File> {
    fn finish(self: Box<Self>) -> io::Result<()> {
        Self::finish(*self)?.flush()
    }
}

impl<W: Write> Write for Output<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(out) => out.write(bytes),
            Self::Zstd(encoder) => encoder.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(out) => out.flush(),
            Self::Zstd(encoder) => encoder.flush(),
        }
    }
}
