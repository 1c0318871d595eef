//! Remote exports as block devices.

use std::sync::Arc;

use everbyte_device::{BlockDevice, DeviceError, Fua, Hole, MemoryDevice, conformance};
use everbyte_nbd::{Address, Client, ClientError, Reconnect, RemoteDevice, Server};
use parking_lot::Mutex;

use crate::plain::{FLUSH, FUA, Kind, PlainServer, ZEROES};
use crate::support::{Fixture, WatchedDevice};

/// The suite through a client, a socket and a server.
fn conforms(prepare: fn(MemoryDevice) -> MemoryDevice) {
    let fixtures = Mutex::new(Vec::new());
    conformance(&|size_bytes| {
        let fixture = Fixture::new(Arc::new(prepare(MemoryDevice::new(size_bytes))));
        let client = Client::connect_uri(&fixture.address().uri("disk")).unwrap();
        fixtures.lock().push(fixture);
        Arc::new(RemoteDevice::new(client))
    });
}

#[test]
fn remote_device_conforms() {
    conforms(|device| device);
}

#[test]
fn remote_read_only_device_conforms() {
    conforms(|device| {
        device.set_read_only(true);
        device
    });
}

#[test]
fn requests_beyond_the_protocol_are_split() {
    let device = Arc::new(MemoryDevice::new(100 << 20));
    let fixture = Fixture::new(Arc::clone(&device) as _);
    let remote = RemoteDevice::new(Client::connect(fixture.address(), "disk").unwrap());
    let data: Vec<u8> = (0..(70 << 20)).map(|i: u32| i.to_le_bytes()[2] | 1).collect();
    remote.write(4097, &data, Fua::Yes).unwrap();
    let mut got = vec![0; data.len()];
    device.read(4097, &mut got).unwrap();
    assert!(got == data);
    got.fill(0);
    remote.read(4097, &mut got).unwrap();
    assert!(got == data);
    remote.disconnect().unwrap();
}

#[test]
fn lost_server_is_a_media_error() {
    let fixture = Fixture::memory();
    let remote = RemoteDevice::new(Client::connect(fixture.address(), "disk").unwrap());
    fixture.server.shutdown();
    for _ in 0..2 {
        let error = remote.flush().unwrap_err();
        assert!(matches!(error, DeviceError::Media { .. } | DeviceError::Gone), "{error}");
    }
}

#[test]
fn removed_export_is_gone() {
    let device = WatchedDevice::new();
    let fixture = Fixture::new(Arc::clone(&device) as _);
    let remote = RemoteDevice::new(Client::connect(fixture.address(), "disk").unwrap());
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

#[test]
fn whole_block_server_serves_any_range() {
    for (flags, block) in [(FLUSH | FUA | ZEROES, 512), (FLUSH | FUA, 4096), (FLUSH, 65_536)] {
        let kind = Kind { flags, blocks: (block, 2 * block), ..Kind::default() };
        let block = u64::from(block);
        let plain = PlainServer::new(6 * block + 100, kind);
        let remote = RemoteDevice::open(&plain.uri(), Reconnect::default()).unwrap();
        let size = remote.geometry().size_bytes;
        assert_eq!((size, u64::from(remote.geometry().minimum_bytes)), (6 * block, block));
        let mut model = vec![0; usize::try_from(size).unwrap()];
        remote.write(0, &vec![1; model.len()], Fua::No).unwrap();
        model.fill(1);
        let edges = [0, 1, block - 1, block, 3 * block + 7, 5 * block, size - 1];
        for (round, start) in edges.into_iter().enumerate() {
            for len in [0, 1, 511, block, block + 1, 2 * block + 13, 4 * block] {
                let len = len.min(size - start);
                let range = usize::try_from(start).unwrap()..usize::try_from(start + len).unwrap();
                let byte = u8::try_from(2 + round).unwrap();
                let fua = if len % 2 == 0 { Fua::Yes } else { Fua::No };
                if round % 3 == 2 {
                    remote.write_zeroes(start, len, Hole::Allowed, false, fua).unwrap();
                    model[range.clone()].fill(0);
                } else {
                    remote.write(start, &vec![byte; range.len()], fua).unwrap();
                    model[range.clone()].fill(byte);
                }
                if fua == Fua::Yes {
                    assert!(plain.bytes.lock().1[range.clone()] == model[range.clone()]);
                }
                let mut found = vec![0xee; range.len()];
                remote.read(start, &mut found).unwrap();
                assert!(found == model[range], "{start}+{len} of blocks of {block}");
            }
        }
        assert!(plain.bytes.lock().0[..model.len()] == model);
        remote.flush().unwrap();
        assert!(plain.bytes.lock().1[..model.len()] == model);
        assert!(remote.write(size - 1, &[1, 1], Fua::No).is_err());
        let extents = remote.status(7, 10, 4).unwrap();
        assert_eq!(extents.iter().map(|extent| extent.len).sum::<u64>(), 10);
    }
}

#[test]
fn first_answering_address_of_a_host_is_used() {
    let fixture = Fixture::memory();
    // `localhost` is both loopback addresses, of which the server has the second.
    let server = match Server::bind(&"tcp:[::1]:0".parse().unwrap(), fixture.shelf.clone()) {
        Ok(server) => server,
        Err(error) => return everbyte_testkit::not_run(&format!("there is no ::1: {error}")),
    };
    let Address::Tcp(address) = server.address() else { panic!("not TCP") };
    let uri = format!("nbd://localhost:{}/disk", address.port());
    Client::connect_uri(&uri).unwrap().flush().unwrap();
    RemoteDevice::open(&uri, Reconnect::default()).unwrap().flush().unwrap();
}
