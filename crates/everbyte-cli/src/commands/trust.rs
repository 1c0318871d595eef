//! Refusals for a pool with other writers, and the option to override them.

use everbyte_control::{Cause, RequestError};

use crate::session::Access;

/// Trust in the writers of a pool.
#[derive(Clone, Copy, clap::Args)]
pub(crate) struct TrustArgs {
    /// Trust all users with write access to the pool. By default, if one other user can write the pool,
    /// this command opens files, devices and sockets for it with the rights of this user. If several
    /// other users can write it, this command opens none. A running server uses its own option.
    #[arg(long)]
    pub(crate) trust_pool: bool,
}

impl TrustArgs {
    /// The access of a changing command.
    pub(crate) fn access(self) -> Access {
        if self.trust_pool { Access::WriteTrusted } else { Access::Write }
    }
}

/// The refusal for a pool with other writers, for this `reason`, with the `effect`.
pub(crate) fn untrusted(reason: &str, effect: &str) -> RequestError {
    RequestError::new(format!("{reason}, so others can change the pool: {effect}"))
        .because(Cause::UntrustedPool)
}
