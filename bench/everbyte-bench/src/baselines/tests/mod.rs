//! Tests of the schemes: the device contract here, crashes and costs in the modules.

mod costs;
mod crash;
mod planted;
mod scenario;

use std::sync::Arc;

use everbyte_device::{BlockDevice, conformance};
use everbyte_media::{Mapped, MediaOptions};

use super::{Kind, Scheme, build};

const LOG_BYTES: u64 = 256 << 10;

fn fresh(kind: Kind, device_bytes: u64, log_bytes: u64) -> Arc<dyn Scheme> {
    let bytes = kind.medium_bytes(device_bytes, log_bytes).unwrap();
    let medium = Mapped::anonymous(bytes, &MediaOptions::new().force_flush(true)).unwrap();
    build(kind, Arc::new(medium), device_bytes, log_bytes).unwrap()
}

#[test]
fn every_scheme_keeps_the_device_contract() {
    for kind in Kind::ALL {
        conformance(&|bytes| -> Arc<dyn BlockDevice> { fresh(kind, bytes, LOG_BYTES) });
    }
}
