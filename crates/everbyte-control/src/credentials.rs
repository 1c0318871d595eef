//! Possible users at the other end of a control socket.
//!
//! Three users are trusted: the one of this process, root, and the owner of the pool. Any user can
//! bind a socket in a world-writable directory, and lock a world-readable file. The user reported
//! by the kernel distinguishes a pool's server from such a process.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use everbyte_path::{look, look_at_link};
use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;

/// The process at the other end of a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Peer {
    pub(crate) pid: i32,
    pub(crate) uid: u32,
}

/// The users allowed to speak for a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Trusted {
    own: u32,
    pool_owner: u32,
}

/// The process that connected to `stream`, or listened at its connection.
pub(crate) fn peer_of(stream: &UnixStream) -> io::Result<Peer> {
    let peer = socket_peercred(stream)?;
    Ok(Peer { pid: peer.pid.as_raw_pid(), uid: peer.uid.as_raw() })
}

impl Trusted {
    /// For the pool at `pool`. A missing pool has no trusted owner.
    pub(crate) fn for_pool(pool: &Path) -> io::Result<Self> {
        match look(pool) {
            Ok(found) => Ok(Self::for_owner(Some(found.metadata().uid()))),
            // The connection then fails with the better error, about the socket.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::for_owner(None)),
            Err(error) => Err(error),
        }
    }

    /// For a pool with the owner `owner`, if known.
    pub(crate) fn for_owner(owner: Option<u32>) -> Self {
        let own = geteuid().as_raw();
        // Without a known owner no further user is trusted.
        Self { own, pool_owner: owner.unwrap_or(own) }
    }

    pub(crate) fn includes(self, uid: u32) -> bool {
        uid == 0 || uid == self.own || uid == self.pool_owner
    }

    /// Returns the description of `peer` if it is not trusted.
    pub(crate) fn check_peer(self, peer: &Peer) -> Result<(), String> {
        if self.includes(peer.uid) {
            return Ok(());
        }
        Err(format!(
            "process {} there runs as user {}, and the pool belongs to user {}",
            peer.pid, peer.uid, self.pool_owner
        ))
    }

    /// Returns the maker of the socket at `path` if that user is not trusted.
    ///
    /// # Errors
    /// The system's, for example if the socket is missing.
    pub(crate) fn check_owner(self, path: &Path) -> io::Result<Result<(), String>> {
        // The link itself: a link by another user could lead to a socket of a trusted user.
        let owner = look_at_link(path)?.metadata().uid();
        let pool_owner = self.pool_owner;
        Ok(if self.includes(owner) {
            Ok(())
        } else {
            Err(format!("it belongs to user {owner}, and the pool to user {pool_owner}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_own_user_the_owner_and_root_are_trusted() {
        let trusted = Trusted { own: 1000, pool_owner: 1001 };
        for (uid, is_trusted) in [(0, true), (1000, true), (1001, true), (1002, false)] {
            let checked = trusted.check_peer(&Peer { pid: 77, uid });
            assert_eq!(checked.is_ok(), is_trusted, "{uid}");
            if let Err(what) = checked {
                assert!(what.contains("process 77") && what.contains("1002"), "{what}");
            }
        }
    }

    #[test]
    fn pool_owner_is_trusted_if_any() {
        let own = geteuid().as_raw();
        assert_eq!(Trusted::for_owner(Some(own + 1)), Trusted { own, pool_owner: own + 1 });
        assert_eq!(Trusted::for_owner(None), Trusted { own, pool_owner: own });
    }

    #[test]
    fn socket_of_another_user_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let own = geteuid().as_raw();
        let trusted = Trusted { own, pool_owner: own };
        assert!(trusted.check_owner(&folder.path().join("none")).is_err());
        trusted.check_owner(folder.path()).unwrap().unwrap();
        let stranger = Trusted { own: own + 1, pool_owner: own + 2 };
        let checked = stranger.check_owner(folder.path()).unwrap();
        // Every user trusts root.
        assert_eq!(checked.is_ok(), own == 0);
    }
}
