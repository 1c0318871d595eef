//! Remote exports as block devices.

use std::sync::Arc;

use everbyte_device::{BlockDevice, DeviceError, MemoryDevice, conformance};
use everbyte_nbd::{Client, ClientError, RemoteDevice};
use parking_lot::Mutex;

use crate::support::{Fixture, Watched};

/// The suite through a client, a socket and a server.
fn conforms(prepare: fn(MemoryDevice) -> MemoryDevice) {
    let fixtures = Mutex::new(Vec::new());
    conformance(&|size_bytes| {
        let fixture = Fixture::new(Arc::new(prepare(MemoryDevice::new(size_bytes))));
        let client = Client::connect_uri(&fixture.address().uri("disk")).unwrap();
        fixtures.lock().push(fixture);
        Arc::new(RemoteDevice::new(client).unwrap())
    });
}

#[test]
fn a_remote_device_conforms() {
    conforms(|device| device);
}

#[test]
fn a_remote_read_only_device_conforms() {
    conforms(|device| {
        device.set_read_only(true);
        device
    });
}

#[test]
fn requests_beyond_the_protocol_are_split() {
    let device = Arc::new(MemoryDevice::new(100 << 20));
    let fixture = Fixture::new(Arc::clone(&device) as _);
    let remote = RemoteDevice::new(Client::connect(fixture.address(), "disk").unwrap()).unwrap();
    let data: Vec<u8> = (0..(70 << 20)).map(|i: u32| i.to_le_bytes()[2] | 1).collect();
    remote.write(4097, &data, everbyte_device::Fua::Yes).unwrap();
    let mut got = vec![0; data.len()];
    device.read(4097, &mut got).unwrap();
    assert!(got == data);
    got.fill(0);
    remote.read(4097, &mut got).unwrap();
    assert!(got == data);
    remote.disconnect().unwrap();
}

#[test]
fn a_lost_server_is_a_media_error() {
    let fixture = Fixture::memory();
    let remote = RemoteDevice::new(Client::connect(fixture.address(), "disk").unwrap()).unwrap();
    fixture.server.shutdown();
    for _ in 0..2 {
        let error = remote.flush().unwrap_err();
        assert!(matches!(error, DeviceError::Media { .. } | DeviceError::Gone), "{error}");
    }
}

#[test]
fn a_removed_export_is_gone() {
    let device = Watched::new();
    let fixture = Fixture::new(Arc::clone(&device) as _);
    let remote = RemoteDevice::new(Client::connect(fixture.address(), "disk").unwrap()).unwrap();
    device.gone.store(true, std::sync::atomic::Ordering::SeqCst);
    assert!(matches!(remote.flush(), Err(DeviceError::Gone)));
}

#[test]
fn connecting_says_what_is_missing() {
    let fixture = Fixture::memory();
    let error = Client::connect(fixture.address(), "none").err().unwrap();
    assert!(matches!(error, ClientError::Refused { .. }), "{error}");
    assert!(error.to_string().contains("no export of this name"), "{error}");
    let nowhere = format!("nbd+unix:///x?socket={}/nowhere", fixture.folder.path().display());
    let error = Client::connect_uri(&nowhere).err().unwrap();
    assert!(matches!(error, ClientError::Connect { .. }), "{error}");
}
