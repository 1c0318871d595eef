//! Metrics of a served pool: the meters of its volumes, their snapshot, the page for Prometheus and
//! its server.
//!
//! Invariants: the names and values of labels are bounded. Labels are volumes up to a limit,
//! addresses of the server, and names from fixed lists.

mod meters;
mod page;
mod request;
mod server;
mod snapshot;

pub use meters::Face;
pub use page::page;
pub use request::{Reply, reply_to};
pub use server::{MetricsAddress, MetricsError, MetricsServer};

pub(crate) use meters::VolumeMeters;
