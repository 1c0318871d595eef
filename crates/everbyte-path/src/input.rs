//! Input named by a user: a file, a device, or a pipe from another program.

use std::fs::{File, Metadata};
use std::io::{self, PipeWriter, Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::ioctl_fionread;

use crate::entry::Kind;
use crate::open::{Access, open};
use crate::place::Place;

/// Longest wait for a writer of a named pipe.
const WRITER_TIME_MAX: Duration = Duration::from_secs(2);
/// Pause between two looks for it.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// Opens an input. Links are followed, as the kernel follows them. A pipe of a shell is open in
/// this process already, and is not waited for here. A program that has opened a named pipe may
/// take any time to its first byte.
///
/// # Errors
/// As [`open`]; no program opens a named pipe for writing within two seconds.
pub fn open_input(path: &Path) -> io::Result<(File, Metadata)> {
    let kinds = [Kind::File, Kind::BlockDevice, Kind::CharDevice, Kind::Fifo];
    let (file, metadata) = open(path, Access::Read, &kinds)?;
    if Kind::of(&metadata) == Kind::Fifo && !is_open_elsewhere(path) {
        return Ok((with_writer(file)?, metadata));
    }
    Ok((file, metadata))
}

/// Waits until a program writes to the pipe, or has written.
fn with_writer(mut pipe: File) -> io::Result<File> {
    // A read of a blocking pipe without a writer would return its end, as if the input were empty.
    let flags = fcntl_getfl(&pipe)?;
    fcntl_setfl(&pipe, flags | OFlags::NONBLOCK)?;
    let first = first_byte(&mut pipe)?;
    // The caller's reads must wait for a slow writer.
    fcntl_setfl(&pipe, flags)?;
    match first {
        Some(first) => relayed(first, pipe),
        None => Ok(pipe),
    }
}

/// Waits for a writer of a non-blocking pipe. Returns the byte read in the wait, if any.
fn first_byte(pipe: &mut File) -> io::Result<Option<u8>> {
    let deadline = Instant::now() + WRITER_TIME_MAX;
    while ioctl_fionread(&*pipe)? == 0 {
        let mut ready = [PollFd::new(&*pipe, PollFlags::IN)];
        poll(&mut ready, Some(&PAUSE))?;
        // Bytes have arrived, or a program has closed the pipe.
        if !ready[0].revents().is_empty() {
            break;
        }
        // Only a read distinguishes a pipe without a writer from one with a silent writer.
        let mut byte = [0];
        match pipe.read(&mut byte) {
            Ok(0) => {}
            Ok(_) => return Ok(Some(byte[0])),
            // A program has the pipe open, and has written nothing yet.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
        if Instant::now() >= deadline {
            let what = "it is a named pipe, and no program writes to it";
            return Err(io::Error::new(io::ErrorKind::TimedOut, what));
        }
    }
    Ok(None)
}

/// A pipe with `first` and then the bytes of `rest`.
fn relayed(first: u8, mut rest: File) -> io::Result<File> {
    // A byte cannot be put back into a pipe.
    let (reader, mut writer): (_, PipeWriter) = io::pipe()?;
    writer.write_all(&[first])?;
    let relay = std::thread::Builder::new().name("named pipe".to_owned());
    // An error means that the reader has ended, and needs no report.
    relay.spawn(move || io::copy(&mut rest, &mut writer).is_ok())?;
    Ok(OwnedFd::from(reader).into())
}

/// Returns true if the path ends in a link of `/proc` to an open file of a process.
fn is_open_elsewhere(path: &Path) -> bool {
    let found = Place::following(path).and_then(|place| place.find());
    found.is_ok_and(|found| found.is_some_and(|found| found.kind() == Kind::Symlink))
}

/// All bytes of an input.
///
/// # Errors
/// As [`open_input`].
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_input(path)?.0.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// All bytes of a text input.
///
/// # Errors
/// As [`open_input`]; it is not UTF-8.
pub fn read_to_string(path: &Path) -> io::Result<String> {
    io::read_to_string(open_input(path)?.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relayed_bytes_keep_order_and_end() {
        let mut rest = tempfile::tempfile().unwrap();
        let text = "b".repeat(200_000);
        rest.write_all(text.as_bytes()).unwrap();
        io::Seek::rewind(&mut rest).unwrap();
        let read = io::read_to_string(relayed(b'a', rest).unwrap()).unwrap();
        assert!(read.starts_with("ab") && read[1..] == text);
    }
}
