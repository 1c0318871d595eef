//! The option that overrides refusals for a pool that other users can change, and those refusals.

use everbyte_control::{Cause, Refused};
use everbyte_server::{Need, OpenPool};
use rustix::process::geteuid;

/// Trust in the users who can change a pool.
#[derive(Clone, Copy, clap::Args)]
pub(crate) struct TrustArgs {
    /// Trust all users who can change the pool. Without it, this command opens files, devices and sockets
    /// for a pool that one other user can change with the rights of that user, and for a pool that several
    /// can change not at all. If a server has the pool, the server's own option counts.
    #[arg(long)]
    pub(crate) trust_pool: bool,
}

impl TrustArgs {
    /// The access of a command that changes the pool.
    pub(crate) fn need(self) -> Need {
        if self.trust_pool { Need::ChangeTrusted } else { Need::Change }
    }
}

/// The reason for which somebody besides root and the user of this process can change the bytes of an open pool.
pub(crate) fn distrust(pool: &OpenPool) -> Option<String> {
    pool.writers().reason(geteuid().as_raw()).map(str::to_owned)
}

/// The refusal for a pool that others can change, for this `reason`, with the `effect`.
pub(crate) fn untrusted(reason: &str, effect: &str) -> Refused {
    Refused::new(format!("{reason}, so others can change the pool: {effect}"))
        .because(Cause::UntrustedPool)
}
