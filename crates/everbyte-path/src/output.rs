//! Output named by a user: new files, replaced files and directories.

use std::fs::File;
use std::io;
use std::path::Path;

use crate::dir::Dir;
use crate::entry::Kind;
use crate::open::Access;
use crate::place::Place;

/// Permissions of new files and directories, less the umask.
const FILE_MODE: u32 = 0o666;
const DIR_MODE: u32 = 0o777;

/// Opens the file at `path` for writing, empty. With `is_new` nothing may have the name.
///
/// # Errors
/// The system's; the file exists; a link of an untrusted user is in the path; the file is not a
/// regular file, a character device or a pipe with a reader.
pub fn create(path: &Path, is_new: bool) -> io::Result<File> {
    if is_new {
        let place = Place::of(path)?;
        return place.dir.create_new(place.name()?, FILE_MODE);
    }
    let place = Place::following(path)?;
    if place.find()?.is_none() {
        return place.dir.create_new(place.name()?, FILE_MODE);
    }
    let (file, metadata) =
        place.open(Access::Write, &[Kind::File, Kind::CharDevice, Kind::Fifo])?;
    // Truncated after the type is known. `O_TRUNC` would act before the check.
    if metadata.is_file() {
        file.set_len(0)?;
    }
    Ok(file)
}

/// Opens the directory at `path`, and creates it and those above it if need be.
///
/// # Errors
/// The system's; something else has the name.
pub fn make_dirs(path: &Path) -> io::Result<Dir> {
    match Dir::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        opened => return opened,
    }
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        make_dirs(parent)?;
    }
    let place = Place::following(path)?;
    match place.dir.make_dir(place.name()?, DIR_MODE) {
        // Another process made it just now.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Dir::open(path),
        made => made,
    }
}
