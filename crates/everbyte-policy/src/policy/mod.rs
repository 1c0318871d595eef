//! Replacement policies, one file each: what is cached where, and what goes when room is needed.
//!
//! A [`Policy`] is pure: it is given accesses and gives [`Action`]s. It does no I/O, has no clock
//! and draws no random number but from a seed, so the simulator and a cache in use run the same
//! code. Each file says where its policy comes from, when not to use it, and what its source left
//! open.
//!
//! Two tiers: [`Everbyte`], our own; [`Hybrid`], the paper's; [`ClockMigration`], its baseline;
//! [`ClockDwf`], [`MClock`], [`FourQueue`] and [`Pdram`], those it compares with; [`Spitfire`], whose
//! pages may be in both tiers at once. One tier, for reference, which is given the sum of both
//! capacities: [`Lru`], [`Clock`], [`Sieve`], [`S3Fifo`], [`Arc`], [`WTinyLfu`] and [`Belady`].
//!
//! Where a policy keeps its tables is the choice of whoever makes it: see [`Dense`] and
//! [`Sparse`].

mod action;
mod arc;
mod belady;
mod bitmap;
mod clock;
mod clock_dwf;
mod clock_migration;
mod everbyte;
mod four_queue;
mod hybrid;
mod lists;
mod lru;
mod m_clock;
mod pdram;
mod recency;
mod residents;
mod ring;
mod s3_fifo;
mod sieve;
mod space;
mod spitfire;
mod w_tinylfu;

#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;

pub use action::{Action, Actions, LineMask, Reason, Tier};
pub use arc::Arc;
pub use belady::Belady;
pub use bitmap::Bitmap;
pub use clock::Clock;
pub use clock_dwf::ClockDwf;
pub use clock_migration::ClockMigration;
pub use everbyte::Everbyte;
pub use four_queue::FourQueue;
pub use hybrid::{DirtyVictims, Hybrid, HybridConfig};
pub use lru::Lru;
pub use m_clock::MClock;
pub use pdram::Pdram;
pub use residents::{Capacity, Residents};
pub use s3_fifo::S3Fifo;
pub use sieve::Sieve;
pub use space::{Dense, PageHasher, PageSet, Space, Sparse, Table, Value};
pub use spitfire::{Spitfire, SpitfireConfig};
pub use w_tinylfu::WTinyLfu;

use crate::access::{Access, PageNo};

/// Decides which pages are in a cache, and in which tier.
///
/// A policy knows of a page only that it is there and whether it is dirty. The caller has the
/// frames and the bytes, and tells what happens to pages besides accesses: [`Policy::cleaned`]
/// after a write-back, [`Policy::remove`] when a page is trimmed or could not be fetched.
///
/// Page numbers are below `u32::MAX`, and in a [`Dense`] space below its limit.
pub trait Policy {
    /// Where it keeps its tables.
    type Space: Space;

    /// The pages in the cache.
    fn residents(&self) -> &Residents<Self::Space>;

    /// The same, for the provided methods; callers have no use for it.
    #[doc(hidden)]
    fn residents_mut(&mut self) -> &mut Residents<Self::Space>;

    /// Decides about one access. When it returns, the page of the access is in the cache, dirty if
    /// it was written to, and the actions have been told in the order in which they can be done.
    fn access(&mut self, access: Access, actions: &mut impl Actions);

    /// Forgets a page with whatever was written to it, without an action: the caller frees the
    /// frame. A page that is not in the cache is no error.
    fn remove(&mut self, page: PageNo);

    /// Frees a frame of a tier, by whatever actions that takes.
    ///
    /// # Panics
    /// If the tier has no page; there is nothing that could be done. [`Residents::used`] tells.
    fn reclaim(&mut self, tier: Tier, actions: &mut impl Actions);

    /// Storage has the bytes of the page, which stays where it is. The caller has made sure that
    /// no write came in the meantime.
    fn cleaned(&mut self, page: PageNo) {
        self.residents_mut().clean(page.0);
    }

    /// Makes the cache larger or smaller. Both tiers keep at least one frame; a policy of one
    /// tier has [`Capacity::in_one_tier`].
    fn resize(&mut self, capacity: Capacity, actions: &mut impl Actions) {
        resize(self, capacity, actions);
    }
}

/// Reclaims frames until both tiers fit.
fn resize<P: Policy + ?Sized>(policy: &mut P, capacity: Capacity, actions: &mut impl Actions) {
    policy.residents_mut().capacity = capacity;
    for tier in [Tier::Pram, Tier::Dram] {
        while policy.residents().used().of(tier) > capacity.of(tier) {
            policy.reclaim(tier, actions);
        }
    }
}
