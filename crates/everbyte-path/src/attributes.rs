//! Owner, permissions and times, set on descriptors.

use std::io;
use std::os::fd::AsFd;

use rustix::fs::{AtFlags, Gid, Mode, Timestamps, Uid, chownat, fchmod, futimens};

/// Attributes to set; `None` leaves one as it is.
#[derive(Clone, Debug, Default)]
pub struct Attributes {
    /// User and group.
    pub owner: Option<(u32, u32)>,
    /// Permissions, set-user-id, set-group-id and sticky bits.
    pub mode: Option<u32>,
    /// Times of the last access and of the last change of the bytes.
    pub times: Option<Timestamps>,
}

impl Attributes {
    /// Sets them on an open file or directory. The owner comes first, because the kernel clears set-user-id
    /// and set-group-id bits when the owner changes.
    ///
    /// # Errors
    /// The system's.
    pub fn set(&self, file: &impl AsFd) -> io::Result<()> {
        // Before the mode: the kernel clears set-user-id and set-group-id bits with a change of the
        // owner.
        set_owner(file, self, AtFlags::EMPTY_PATH)?;
        if let Some(mode) = self.mode {
            fchmod(file, Mode::from_raw_mode(mode))?;
        }
        match &self.times {
            Some(times) => Ok(futimens(file, times)?),
            None => Ok(()),
        }
    }
}

pub(crate) fn set_owner(
    file: &impl AsFd,
    attributes: &Attributes,
    flags: AtFlags,
) -> io::Result<()> {
    let Some((user, group)) = attributes.owner else { return Ok(()) };
    // The number that the system takes for "no change".
    if user == u32::MAX || group == u32::MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "there is no user 4294967295"));
    }
    Ok(chownat(file, "", Some(Uid::from_raw(user)), Some(Gid::from_raw(group)), flags)?)
}
