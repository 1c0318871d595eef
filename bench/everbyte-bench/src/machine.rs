//! The suite of virtual machines: servers by vhost-user-blk, with the guest of the crate `virtio-driver`.
//!
//! Our NBD server with the bench's own client is the reference of the processor time of servers.

use anyhow::Result;

use crate::block::{Reference, Subjects};
use crate::driver::{Common, Findings, Pace, Run, Suite};
use crate::measure::Sample;
use crate::subjects::nbd::{Server, ServerKind};
use crate::subjects::vhost::{VhostKind, VhostSubject};
use crate::workload::{Action, Workload};

/// Measures disks of virtual machines by vhost-user-blk. The suite needs free memory for seven devices of 512 MiB.
#[derive(clap::Args, Clone)]
pub(crate) struct MachineArgs {
    #[command(flatten)]
    common: Common,
}

/// Processor time of the server for a request.
fn server_cpu(sample: &Sample) -> f64 {
    sample.server_cpu_per_request().unwrap_or(f64::NAN)
}

const REFERENCES: [Reference; 5] = [
    Reference { subject: "vhost-qemu", metric: "rate_to_qemu", of: Sample::per_second },
    Reference { subject: "vhost-qemu-uring", metric: "rate_to_qemu_uring", of: Sample::per_second },
    Reference { subject: "vhost-memory", metric: "rate_to_memory", of: Sample::per_second },
    Reference {
        subject: "vhost-everbyte-write-back",
        metric: "rate_to_write_back",
        of: Sample::per_second,
    },
    Reference { subject: "nbd-everbyte", metric: "server_cpu_to_nbd", of: server_cpu },
];

impl Suite for MachineArgs {
    const NAME: &'static str = "machine";
    const PACE: Pace = Pace { rounds: 9, slice_s: 0.5 };
    const QUICK: Pace = Pace { rounds: 2, slice_s: 0.02 };

    fn common(&self) -> &Common {
        &self.common
    }

    fn measure(run: &Run<Self>) -> Result<Findings> {
        let size_bytes = if run.quick { 16 << 20 } else { 512 << 20 };
        let mut workloads = Vec::new();
        for (depth, bytes) in [(1, 4 << 10), (32, 4 << 10), (1, 64 << 10), (32, 64 << 10)] {
            let of = |action| Workload::new(action, bytes).depth(depth);
            workloads.extend([of(Action::Read), of(Action::Rewrite)]);
        }
        let mut servers = Subjects::new(run, &workloads);
        // A smoke test needs no foreign server.
        for kind in VhostKind::ALL.into_iter().filter(|kind| kind.is_ours() || !run.quick) {
            run.progress.set_message(format!("starting {}", kind.name()));
            servers.add(&[kind.name()], true, || {
                Ok(vec![Box::new(VhostSubject::start(kind, run.folder(), size_bytes)?)])
            });
        }
        servers.add(&[ServerKind::OurVolume.name()], true, || {
            Ok(vec![Box::new(Server::start(ServerKind::OurVolume, run.folder(), size_bytes)?)])
        });
        let rows = servers.run(&[], &REFERENCES, size_bytes)?;
        Ok(Findings::new(rows, "servers by vhost-user-blk".to_owned(), size_bytes))
    }
}
