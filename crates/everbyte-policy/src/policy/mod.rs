//! Replacement policies, one file each: a policy places pages in the tiers and chooses the victims.
//!
//! A [`Policy`] is pure: it takes accesses and returns [`Action`]s. It does no I/O, has no clock
//! and draws random numbers only from a seed, so the simulator and a cache in use run the same
//! code. Each file names the policy's source, its unsuitable workloads, and the open questions of
//! the source.
//!
//! Two tiers: [`Everbyte`], our own; [`Hybrid`], the paper's; [`ClockMigration`], its baseline;
//! [`ClockDwf`], [`MClock`], [`FourQueue`] and [`Pdram`], its rivals; [`Spitfire`], with pages in
//! both tiers. One tier, for reference, with the sum of both capacities: [`Lru`], [`Clock`],
//! [`Sieve`], [`S3Fifo`], [`Arc`], [`WTinyLfu`] and [`Belady`].
//!
//! The maker of a policy chooses the storage of its tables: see [`Dense`], [`AddressedPages`] and [`Sparse`].

mod action;
mod action_counts;
mod arc;
mod belady;
mod bitmap;
mod clock;
mod clock_dwf;
mod clock_migration;
mod directory;
mod everbyte;
mod four_queue;
mod hybrid;
mod lists;
mod lru;
mod m_clock;
mod pdram;
mod recency;
mod ring;
mod s3_fifo;
mod sequence;
mod sieve;
mod sparse_set;
mod spitfire;
mod storage;
mod w_tinylfu;

#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;

pub use action::{Action, Actions, Reason, Tier};
pub use action_counts::{ActionCount, ActionCounts};
pub use arc::Arc;
pub use belady::{Belady, Future};
pub use bitmap::Bitmap;
pub use clock::Clock;
pub use clock_dwf::ClockDwf;
pub use clock_migration::ClockMigration;
pub use directory::{Capacity, Directory};
pub use everbyte::{Everbyte, Order, Rules};
pub use four_queue::FourQueue;
pub use hybrid::{CleanVictims, DirtyVictims, Hybrid, HybridConfig};
pub use lru::Lru;
pub use m_clock::MClock;
pub use pdram::Pdram;
pub use s3_fifo::S3Fifo;
pub use sieve::Sieve;
pub use sparse_set::SparseSet;
pub use spitfire::{Spitfire, SpitfireConfig};
pub use storage::{
    AddressedPages, Dense, PageHasher, PageSet, PlacedStorage, PlacedTable, Sparse, Storage, Table,
    Value,
};
pub use w_tinylfu::WTinyLfu;

use crate::access::{Access, PageNo};

/// Decides on the pages of a cache, and on their tiers.
///
/// A policy knows of a page only its tier and whether it is dirty. The caller has the frames and
/// the bytes, and reports other events: [`Policy::cleaned`] after a write-back, [`Policy::remove`]
/// when a page is trimmed or could not be fetched.
///
/// Page numbers are below `u32::MAX`, and in [`Dense`] storage below its limit.
///
/// Any crate can have a policy: [`Directory`] gives the actions of the usual steps, and
/// [`run_policy`](crate::sim::run_policy) simulates it. `examples/own_policy.rs` is a whole one.
pub trait Policy {
    /// Storage of its tables.
    type Storage: Storage;

    /// Returns the pages of the cache.
    fn directory(&self) -> &Directory<Self::Storage>;

    /// Returns the pages of the cache, for the provided methods; callers have no use for it.
    fn directory_mut(&mut self) -> &mut Directory<Self::Storage>;

    /// Decides about one access. On return, the page of the access is in the cache, dirty after a
    /// write, and `actions` has received the actions in an executable order.
    fn access(&mut self, access: Access, actions: &mut impl Actions);

    /// Removes a page and the bytes written to it, without an action: the caller frees the frame. A
    /// missing page is not an error.
    fn remove(&mut self, page: PageNo);

    /// Frees a frame of a tier, by any necessary actions.
    ///
    /// # Panics
    /// If the tier has no page; see [`Directory::used`].
    fn reclaim(&mut self, tier: Tier, actions: &mut impl Actions);

    /// Marks a page clean, which stays where it is: the backing device has its bytes. The caller
    /// has made sure that no write came in the meantime.
    fn cleaned(&mut self, page: PageNo) {
        self.directory_mut().clean(page.0);
    }

    /// Makes the cache larger or smaller. Both tiers keep at least one frame; a policy of one
    /// tier has [`Capacity::in_one_tier`].
    fn resize(&mut self, capacity: Capacity, actions: &mut impl Actions) {
        resize(self, capacity, actions);
    }
}

/// Reclaims frames until both tiers fit.
fn resize<P: Policy + ?Sized>(policy: &mut P, capacity: Capacity, actions: &mut impl Actions) {
    policy.directory_mut().capacity = capacity;
    for tier in [Tier::Scm, Tier::Dram] {
        while policy.directory().used().of(tier) > capacity.of(tier) {
            policy.reclaim(tier, actions);
        }
    }
}
