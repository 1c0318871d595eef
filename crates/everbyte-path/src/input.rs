//! Input that a user names: a file, a device, or a pipe that another program writes.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::io::ioctl_fionread;

use crate::entry::Kind;
use crate::open::{Access, open};
use crate::place::Place;

/// Longest wait for the first byte of a named pipe.
const WRITER_TIME_MAX: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(10);

/// Opens an input. Links are followed, as the kernel follows them. A pipe of a shell, which this process has
/// open already, is not waited for here.
///
/// # Errors
/// As [`open`]; no program writes to a named pipe within two seconds.
pub fn open_input(path: &Path) -> io::Result<(File, Metadata)> {
    let kinds = [Kind::File, Kind::BlockDevice, Kind::CharDevice, Kind::Fifo];
    let (file, metadata) = open(path, Access::Read, &kinds)?;
    if Kind::of(&metadata) == Kind::Fifo && !is_open_elsewhere(path) {
        let deadline = Instant::now() + WRITER_TIME_MAX;
        while ioctl_fionread(&file)? == 0 {
            if Instant::now() >= deadline {
                let what = "it is a named pipe, and no program writes to it";
                return Err(io::Error::new(io::ErrorKind::TimedOut, what));
            }
            std::thread::sleep(LOOK);
        }
    }
    Ok((file, metadata))
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

/// All bytes of an input that is a text.
///
/// # Errors
/// As [`open_input`]; it is not UTF-8.
pub fn read_to_string(path: &Path) -> io::Result<String> {
    io::read_to_string(open_input(path)?.0)
}
