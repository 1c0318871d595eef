//! The bytes of a file for a copy into a pool, without its holes.
//!
//! Invariant: a hole is a range reported as a hole by the system. Without such a report, the file
//! is read to its end.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;

use everbyte_path::Kind;
use rustix::fs::{SeekFrom, seek, tell};
use rustix::io::Errno;

/// The data of a file, in pieces.
pub(super) struct DataRanges<'f> {
    file: &'f File,
    way: ReadMode,
    /// The next byte.
    at: u64,
    /// The end of the current range of data.
    range_end: u64,
    /// The end of the file.
    end: u64,
    /// Offset of the file's first copied byte.
    start: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ReadMode {
    /// Sequential reads.
    Stream,
    /// Reads of the ranges of data.
    Ranges,
    /// Nothing follows.
    Ended,
}

/// A piece of a file.
pub(super) struct DataPiece {
    /// Its offset in the copy.
    pub(super) offset: u64,
    pub(super) bytes: usize,
}

impl<'f> DataRanges<'f> {
    /// The data of `file` from its current position on.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn of(file: &'f File) -> io::Result<Self> {
        let metadata = file.metadata()?;
        // Files of /proc have bytes and no length.
        let is_sized = Kind::of(&metadata) == Kind::File && metadata.len() > 0;
        // An inherited descriptor may stand behind the beginning. The copy starts there, as with
        // cat.
        let start = if is_sized { tell(file)? } else { 0 };
        let knows_holes = is_sized
            && match seek(file, SeekFrom::Data(start)) {
                // ENXIO means that no data follows: the file system knows holes.
                Ok(_) | Err(Errno::NXIO) => true,
                Err(_) => false,
            };
        // The probe has moved the offset, which stream reads use.
        if is_sized {
            seek(file, SeekFrom::Start(start))?;
        }
        let way = if knows_holes { ReadMode::Ranges } else { ReadMode::Stream };
        Ok(Self { file, way, at: start, range_end: start, end: 0, start })
    }

    /// Reads the next piece; `None` at the end.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> io::Result<Option<DataPiece>> {
        if self.way == ReadMode::Ranges && self.at >= self.range_end && !self.next_range()? {
            return Ok(None);
        }
        let (at, file) = (self.at, self.file);
        // The end is not fixed in advance: files can grow and shrink during the copy.
        let bytes = match self.way {
            ReadMode::Ended => return Ok(None),
            ReadMode::Stream => {
                let mut file = file;
                fill(buffer, |rest, _| file.read(rest))?
            }
            ReadMode::Ranges => {
                let left = usize::try_from(self.range_end - at).unwrap_or(usize::MAX);
                let wanted = buffer.len().min(left);
                let bytes =
                    fill(&mut buffer[..wanted], |rest, done| file.read_at(rest, at + done as u64))?;
                if bytes < wanted {
                    // It has become shorter, or its length means nothing.
                    self.way = ReadMode::Ended;
                    self.end = at + bytes as u64;
                }
                bytes
            }
        };
        self.at += bytes as u64;
        if bytes == 0 {
            self.way = ReadMode::Ended;
            return Ok(None);
        }
        Ok(Some(DataPiece { offset: at - self.start, bytes }))
    }

    /// Bytes of the copy after the last piece: data and the last hole.
    pub(super) fn end(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// Finds the next range of data. Returns false at the end.
    fn next_range(&mut self) -> io::Result<bool> {
        match seek(self.file, SeekFrom::Data(self.at)) {
            Ok(at) => {
                self.at = at;
                // A later write can fill the hole after this. The copy then has its zeroes.
                self.range_end = seek(self.file, SeekFrom::Hole(at))?;
                Ok(true)
            }
            Err(Errno::NXIO) => {
                self.way = ReadMode::Ended;
                // Asked at the end: the hole behind the last data reaches to the present length.
                self.end = self.file.metadata()?.len();
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// Reads until the buffer is full or the source has ended.
fn fill(
    buffer: &mut [u8],
    mut read: impl FnMut(&mut [u8], usize) -> io::Result<usize>,
) -> io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match read(&mut buffer[done..], done) {
            // The end of the file, or of a pipe whose writers are gone.
            Ok(0) => break,
            Ok(len) => done += len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pieces of `file` by offset and length, and the size of the copy.
    fn pieces(file: &File) -> (Vec<(u64, usize)>, u64) {
        let mut data = DataRanges::of(file).unwrap();
        let mut buffer = vec![0; 1 << 20];
        let mut pieces = Vec::new();
        while let Some(piece) = data.read(&mut buffer).unwrap() {
            pieces.push((piece.offset, piece.bytes));
        }
        let read = pieces.last().map_or(0, |(offset, len)| offset + *len as u64);
        (pieces, read.max(data.end()))
    }

    #[test]
    fn holes_of_a_file_are_not_read() {
        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        file.set_len(16 << 40).unwrap();
        assert_eq!(pieces(&file), (vec![], 16 << 40));
        file.write_all_at(b"x", 5 << 40).unwrap();
        seek(&file, SeekFrom::Start(0)).unwrap();
        let (found, size) = pieces(&file);
        assert_eq!((found, size), (vec![(5 << 40, 4096)], 16 << 40));
        file.set_len((5 << 40) + 1).unwrap();
        seek(&file, SeekFrom::Start(0)).unwrap();
        assert_eq!(pieces(&file), (vec![(5 << 40, 1)], (5 << 40) + 1));
        // From the middle on, as standard input may be.
        seek(&file, SeekFrom::Start(4 << 40)).unwrap();
        assert_eq!(pieces(&file), (vec![(1 << 40, 1)], (1 << 40) + 1));
    }

    #[test]
    fn files_of_unknown_length_are_read() {
        let (status, _) = everbyte_path::open(
            "/proc/self/status".as_ref(),
            everbyte_path::Access::Read,
            &[Kind::File],
        )
        .unwrap();
        let (found, size) = pieces(&status);
        assert!(!found.is_empty() && size > 100, "{found:?} {size}");
        let (ours, mut theirs) = std::io::pipe().unwrap();
        std::io::Write::write_all(&mut theirs, b"some bytes").unwrap();
        drop(theirs);
        let ours = std::os::fd::OwnedFd::from(ours);
        assert_eq!(pieces(&File::from(ours)), (vec![(0, 10)], 10));
    }
}
