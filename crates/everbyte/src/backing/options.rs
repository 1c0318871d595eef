//! Options for opening backing devices.

use std::time::Duration;

use everbyte_media::{OtherWriters, Writers};
use everbyte_path::Rights;
use rustix::process::geteuid;

/// Options of opening.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// Longest wait of requests for a lost NBD server.
    pub reconnect_timeout: Duration,
    /// Requests to files and block devices bypass the system's page cache.
    pub direct: bool,
    /// Rights to open files, devices and sockets of this machine.
    pub rights: Rights,
}

impl Default for Options {
    /// 30 s, through the page cache, and with the rights of the process.
    fn default() -> Self {
        Self { reconnect_timeout: Duration::from_secs(30), direct: false, rights: Rights::Own }
    }
}

/// The rights of a process to open backing devices and other files for a pool with these `writers`.
/// If the pool has one writer in addition to root and the user of the process, the rights are the
/// writer's. If it has more, the process has no rights. A process without the right to change its
/// user then has no rights either.
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
