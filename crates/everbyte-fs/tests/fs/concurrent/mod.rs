//! Two threads and a checkpointer on one file system. A scheduler can switch at every call of the medium and
//! every lock. Each schedule is crashed. The oracle demands a state that some order of the operations had at
//! the end of an epoch. A deadlock is a failure.
//!
//! `EVERBYTE_SCHEDULES` sets the number of seeded schedules of each workload, in addition to the schedules
//! with one switch.
//!
//! Not covered: orders without sequential consistency of memory.

pub(crate) mod explore;
mod oracle;
mod reuse;
mod scrub;
mod workloads;
