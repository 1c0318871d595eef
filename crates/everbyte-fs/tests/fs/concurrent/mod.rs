//! Two threads and a checkpointer on one file system, under a scheduler that may switch at every call of
//! the medium and every lock. Each order of their steps is crashed, and the oracle demands that what is
//! left is what some order of the operations had made when an epoch ended; a deadlock is found as such.
//!
//! `EVERBYTE_SCHEDULES` sets how many seeded orders are tried of each workload beyond those with one
//! switch at a chosen place.
//!
//! Not covered: orders in which memory itself is not sequentially consistent.

pub(crate) mod explore;
mod oracle;
mod reuse;
mod scrub;
mod workloads;
