//! Options with which backing devices are opened.

use std::time::Duration;

use everbyte_media::{OtherWriters, Writers};
use everbyte_path::Rights;
use rustix::process::geteuid;

/// Options with which backing devices are opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// Longest time for which requests wait for an NBD server that is lost.
    pub reconnect_timeout: Duration,
    /// Requests to files and block devices bypass the system's page cache.
    pub direct: bool,
    /// Rights with which files, devices and sockets of this machine are opened.
    pub rights: Rights,
}

impl Default for Options {
    /// 30 s, through the page cache, and with the rights of the process.
    fn default() -> Self {
        Self { reconnect_timeout: Duration::from_secs(30), direct: false, rights: Rights::Own }
    }
}

/// The rights with which a process opens the backing devices that a pool names, and other files for the pool, if
/// `writers` can change the pool. Beside root and the user of the process, one user may: then those rights are the
/// user's. If there are more, or the process cannot take the rights of others, there are none.
#[must_use]
pub fn rights_for(writers: &Writers) -> Rights {
    let own = geteuid();
    let reason = || {
        let reason = writers.reason(own.as_raw()).unwrap_or("others can change the pool");
        Rights::Nothing(format!("{reason}, so others can change the pool").into())
    };
    match writers.others_than(own.as_raw()) {
        OtherWriters::Nobody => Rights::Own,
        OtherWriters::One(uid) if own.is_root() => Rights::of_user(uid),
        OtherWriters::One(_) | OtherWriters::Several => reason(),
    }
}
