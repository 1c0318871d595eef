//! Slow, obvious implementations of the policies, from the same descriptions and nothing else:
//! plain vectors, searched from end to end. Tests demand the same actions of both.

mod everbyte;
mod one_tier;
mod spitfire;
mod two_tiers;

pub(super) use everbyte::everbyte;
pub(super) use one_tier::{arc, belady, clock, lru, s3_fifo, sieve, w_tinylfu};
pub(super) use spitfire::spitfire;
pub(super) use two_tiers::{clock_dwf, clock_migration, four_queue, hybrid, m_clock, pdram};
