//! Streams over devices and files: `Read`, `Write` and `Seek` of the standard library. See [`Cursor`].

use std::io::{self, Read, Seek, SeekFrom, Write};

use everbyte_device::BlockDevice;

use crate::error::Error;
use crate::files::File;

/// Bytes with a position: a device or an open file.
pub trait Ranges {
    /// Size in bytes.
    ///
    /// # Errors
    /// The size cannot be read.
    fn size_bytes(&self) -> Result<u64, Error>;

    /// Reads bytes at `offset`, and returns how many: 0 at the end.
    ///
    /// # Errors
    /// The bytes cannot be read.
    fn read_some(&self, offset: u64, out: &mut [u8]) -> Result<usize, Error>;

    /// Writes bytes at `offset`, and returns how many: 0 at the end of a device.
    ///
    /// # Errors
    /// The bytes cannot be written.
    fn write_some(&self, offset: u64, data: &[u8]) -> Result<usize, Error>;

    /// Makes all earlier writes durable.
    ///
    /// # Errors
    /// The medium fails.
    fn persist(&self) -> Result<(), Error>;
}

impl<D: BlockDevice> Ranges for D {
    fn size_bytes(&self) -> Result<u64, Error> {
        Ok(self.geometry().size_bytes)
    }

    fn read_some(&self, offset: u64, out: &mut [u8]) -> Result<usize, Error> {
        let len = within(self.geometry().size_bytes, offset, out.len());
        self.read_at(offset, &mut out[..len])?;
        Ok(len)
    }

    fn write_some(&self, offset: u64, data: &[u8]) -> Result<usize, Error> {
        let len = within(self.geometry().size_bytes, offset, data.len());
        self.write_at(offset, &data[..len])?;
        Ok(len)
    }

    fn persist(&self) -> Result<(), Error> {
        Ok(self.flush()?)
    }
}

impl Ranges for File {
    fn size_bytes(&self) -> Result<u64, Error> {
        Self::size_bytes(self)
    }

    fn read_some(&self, offset: u64, out: &mut [u8]) -> Result<usize, Error> {
        self.read_at(offset, out)
    }

    fn write_some(&self, offset: u64, data: &[u8]) -> Result<usize, Error> {
        self.write_at(offset, data)?;
        Ok(data.len())
    }

    fn persist(&self) -> Result<(), Error> {
        self.sync()
    }
}

/// Number of bytes of a request of `len` bytes within a device of `size` bytes.
fn within(size: u64, offset: u64, len: usize) -> usize {
    let left = size.saturating_sub(offset);
    usize::try_from(left).map_or(len, |left| len.min(left))
}

/// A stream over a device or an open file. [`Write::flush`] makes all earlier writes durable.
///
/// A position beyond the end of a device reads and writes nothing.
#[derive(Debug)]
pub struct Cursor<R> {
    inner: R,
    position: u64,
}

impl<R: Ranges> Cursor<R> {
    /// Makes a stream with its position at byte 0.
    pub fn new(inner: R) -> Self {
        Self { inner, position: 0 }
    }

    /// The device or file.
    pub fn into_inner(self) -> R {
        self.inner
    }

    fn advance(&mut self, done: Result<usize, Error>) -> io::Result<usize> {
        let done = done.map_err(io::Error::other)?;
        self.position += done as u64;
        Ok(done)
    }
}

impl<R: Ranges> Read for Cursor<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let done = match self.inner.size_bytes() {
            Ok(len) if self.position >= len => Ok(0),
            _ => self.inner.read_some(self.position, out),
        };
        self.advance(done)
    }
}

impl<R: Ranges> Write for Cursor<R> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let done = self.inner.write_some(self.position, data);
        self.advance(done)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.persist().map_err(io::Error::other)
    }
}

impl<R: Ranges> Seek for Cursor<R> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let (from, by) = match to {
            SeekFrom::Start(position) => (position, 0),
            SeekFrom::Current(by) => (self.position, by),
            SeekFrom::End(by) => (self.inner.size_bytes().map_err(io::Error::other)?, by),
        };
        let before = || io::Error::new(io::ErrorKind::InvalidInput, "the position is negative");
        self.position = from.checked_add_signed(by).ok_or_else(before)?;
        Ok(self.position)
    }
}
