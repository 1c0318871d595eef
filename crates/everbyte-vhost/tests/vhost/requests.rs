//! Valid guests.

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use everbyte_device::{BlockDevice, Fua, MemoryDevice, ReadOnlyDevice};
use vhost::vhost_user::VhostUserFrontend;
use vhost::vhost_user::message::{VhostUserConfigFlags, VhostUserInflight};

use crate::guest::{
    DATA, DISCARD, EVENT_IDX, Event, FLUSH, FLUSH_KIND, GET_ID, Guest, Host, IN, INDIRECT, NEXT,
    OUT, QUEUE_SIZE, RO, STATUS, WRITE, WRITE_ZEROES, connect, memory, region, serve,
};
use vhost::VhostBackend;

#[test]
fn two_queues_share_one_disk() {
    let host = Host::new(false);
    let mut guest = Guest::new(&host, 2, 0);
    assert_eq!(guest.write(0, 1, &[7; 4096]), 0);
    assert_eq!(guest.write(1, 9, &[8; 512]), 0);
    assert_eq!(guest.read(1, 1, 4608), (0, [vec![7; 4096], vec![8; 512]].concat()));
    assert_eq!(guest.execute(0, FLUSH_KIND, 0, 0), 0);
    assert_eq!(guest.read(0, 8191, 512), (0, vec![0; 512]));
    assert_eq!(guest.read(0, 8192, 512).0, 1, "beyond the end");
    assert_eq!(guest.read(0, u64::MAX, 512).0, 1, "the offset overflows");
    assert_eq!(guest.read(0, 0, 100).0, 1, "not a whole sector");
    assert_eq!(guest.execute(0, 77, 0, 0), 2, "an unknown type");
}

#[test]
fn long_requests_move_all_bytes() {
    let host = Host::new(false);
    let mut guest = Guest::new(&host, 1, 0);
    // The chain has two data descriptors of 1.5 MiB behind the queue's own memory.
    let (len, at) = (3 << 20, 2 << 20);
    let bytes: Vec<u8> = (0..len).map(|at: u32| u8::try_from(at / 513 % 251).unwrap()).collect();
    for (kind, flags) in [(OUT, NEXT), (IN, NEXT | WRITE)] {
        let data = if kind == OUT { bytes.clone() } else { vec![0; bytes.len()] };
        guest.put(0, at, &data);
        let header = guest.header(0, 0, kind, 3);
        guest.put(0, STATUS, &[0xff]);
        guest.descriptor(0, 0, 0, (header, 16, NEXT, 1));
        guest.descriptor(0, 0, 1, (Guest::address(0, at), len / 2 + 5, flags, 2));
        let second = Guest::address(0, at + u64::from(len) / 2 + 5);
        guest.descriptor(0, 0, 2, (second, len / 2 - 5, flags, 3));
        guest.descriptor(0, 0, 3, (Guest::address(0, STATUS), 1, WRITE, 0));
        guest.publish(0, 0);
        guest.kick(0);
        let written = if kind == IN { len + 1 } else { 1 };
        assert_eq!(guest.answer(0), Some((0, written)));
        assert_eq!(guest.status(0, 0), 0);
        assert!(guest.get(0, at, bytes.len()) == bytes, "{kind}");
    }
    let found = host.server.connection().unwrap();
    assert_eq!((found.read_bytes, found.written_bytes), (u64::from(len), u64::from(len)));
}

#[test]
fn requests_of_one_drain_are_answered_in_order() {
    let host = Host::new(false);
    let mut guest = Guest::new(&host, 1, 0);
    for round in 0..40_u16 {
        let mut heads = Vec::new();
        for slot in 0..10 {
            let sector = u64::from(slot) * 8;
            let kind = if slot % 4 == 3 { 99 } else { OUT };
            let at = DATA + u64::from(slot) * 0x2000;
            guest.put(0, at, &[u8::try_from(slot + round).unwrap(); 4096]);
            heads.push(guest.chain(0, slot, kind, sector, 4096));
        }
        heads.iter().for_each(|head| guest.publish(0, *head));
        guest.kick(0);
        for (slot, head) in (0..).zip(&heads) {
            assert_eq!(guest.answer(0), Some((u32::from(*head), 1)));
            assert_eq!(guest.status(0, slot), if slot % 4 == 3 { 2 } else { 0 });
        }
        let newest = u8::try_from(8 + round).unwrap();
        assert_eq!(guest.read(0, 64, 512), (0, vec![newest; 512]));
    }
}

#[test]
fn write_through_makes_answered_writes_durable() {
    let host = Host::new(false);
    let mut guest = Guest::new(&host, 1, 0);
    guest.write(0, 0, &[1; 512]);
    assert_eq!(host.take_events(), [Event::Write(Fua::Yes)]);
    // The guest sees a disk without a volatile cache, and cannot switch it on.
    let flags = VhostUserConfigFlags::WRITABLE;
    let (_, cache) = guest.frontend.get_config(32, 1, flags, &[0]).unwrap();
    assert_eq!(cache, [0]);
    assert!(guest.frontend.set_config(32, flags, &[1]).is_err());
    guest.frontend.set_config(32, flags, &[0]).unwrap();
    guest.write(0, 0, &[2; 512]);
    assert_eq!(host.take_events(), [Event::Flush, Event::Write(Fua::Yes)]);
}

#[test]
fn write_back_guest_switches_cache() {
    let host = Host::new(true);
    let mut guest = Guest::new(&host, 1, 0);
    guest.write(0, 0, &[1; 512]);
    guest.execute(0, FLUSH_KIND, 0, 0);
    assert_eq!(host.take_events(), [Event::Write(Fua::No), Event::Flush]);
    let flags = VhostUserConfigFlags::WRITABLE;
    guest.frontend.set_config(32, flags, &[0]).unwrap();
    guest.write(0, 0, &[1; 512]);
    assert_eq!(host.take_events(), [Event::Flush, Event::Write(Fua::Yes)]);
    guest.frontend.set_config(32, flags, &[1]).unwrap();
    let (_, cache) = guest.frontend.get_config(32, 1, flags, &[0]).unwrap();
    assert_eq!(cache, [1]);
    guest.write(0, 0, &[1; 512]);
    assert_eq!(host.take_events(), [Event::Write(Fua::No)]);
}

#[test]
fn driver_without_flush_gets_write_through() {
    let host = Host::new(true);
    let mut guest = Guest::new(&host, 1, 0);
    let features = guest.frontend.get_features().unwrap() & !FLUSH;
    guest.frontend.set_features(features & (1 << 32 | 1 << 30)).unwrap();
    guest.write(0, 0, &[1; 512]);
    assert_eq!(host.take_events(), [Event::Write(Fua::Yes)]);
}

#[test]
fn discard_and_write_zeroes_clear_sectors() {
    let host = Host::new(false);
    let mut guest = Guest::new(&host, 1, 0);
    let mut zero = |kind: u32, sector: u64, sectors: u32, flags: u32| {
        guest.write(0, 0, &[5; 4096]);
        let range = [&sector.to_le_bytes()[..], &sectors.to_le_bytes(), &flags.to_le_bytes()];
        guest.put(0, DATA, &range.concat());
        let status = guest.execute(0, kind, 0, 16);
        let (_, bytes) = guest.read(0, 0, 4096);
        (status, bytes.iter().filter(|byte| **byte == 0).count())
    };
    assert_eq!(zero(DISCARD, 0, 8, 0), (0, 4096));
    assert_eq!(zero(WRITE_ZEROES, 1, 2, 0), (0, 1024));
    assert_eq!(zero(WRITE_ZEROES, 1, 2, 1), (0, 1024));
    assert_eq!(zero(DISCARD, 1, 2, 1), (2, 0), "no flag is known");
    assert_eq!(zero(WRITE_ZEROES, 1, 2, 2), (2, 0), "an unknown flag");
    assert_eq!(zero(WRITE_ZEROES, u64::MAX, 2, 0), (1, 0));
    assert_eq!(zero(DISCARD, 8191, 2, 0), (1, 0));
}

#[test]
fn serial_number_is_the_volume() {
    let host = Host::new(false);
    let mut guest = Guest::new(&host, 1, 0);
    assert_eq!(guest.execute(0, GET_ID, 0, 20), 0);
    assert_eq!(guest.get(0, DATA, 20), [&b"disk"[..], &[0; 16]].concat());
}

#[test]
fn read_only_device_refuses_writes() {
    let inner = Arc::new(MemoryDevice::new(1 << 20));
    let device = ReadOnlyDevice::new(inner as Arc<dyn BlockDevice>, "a test");
    let (path, server, folder) = serve(Arc::new(device), "disk", false);
    let mut host = Host::new(false);
    (host.path, host.server) = (path, server);
    let mut guest = Guest::new(&host, 1, RO);
    assert_eq!(guest.write(0, 0, &[1; 512]), 1);
    assert_eq!(guest.read(0, 0, 512), (0, vec![0; 512]));
    drop(folder);
}

#[test]
fn indirect_table_is_followed() {
    let host = Host::new(false);
    let mut guest = Guest::new(&host, 1, 0);
    guest.put(0, DATA, &[9; 1024]);
    let table = 0x80000;
    let header = guest.header(0, 0, OUT, 2);
    guest.descriptor(0, table, 0, (header, 16, NEXT, 3));
    guest.descriptor(0, table, 3, (Guest::address(0, DATA), 1024, NEXT, 1));
    guest.descriptor(0, table, 1, (Guest::address(0, STATUS), 1, WRITE, 0));
    guest.descriptor(0, 0, 5, (Guest::address(0, table), 64, INDIRECT, 0));
    guest.publish(0, 5);
    guest.kick(0);
    assert_eq!(guest.answer(0), Some((5, 1)));
    assert_eq!(guest.read(0, 2, 1024), (0, vec![9; 1024]));
}

#[test]
fn event_index_limits_notifications() {
    let host = Host::new(false);
    let mut guest = Guest::new(&host, 1, EVENT_IDX);
    // A queue starts with a notification, for the answers of an earlier server.
    assert_eq!(guest.notifications(0), 1);
    // The driver asks for a notification after the first answer, and never changes that.
    assert_eq!(guest.write(0, 0, &[1; 512]), 0);
    for _ in 0..9 {
        assert_eq!(guest.write(0, 0, &[1; 512]), 0);
    }
    assert_eq!(guest.notifications(0), 1);
}

#[test]
fn stopped_queue_continues_at_its_index() {
    let host = Host::new(false);
    let mut guest = Guest::new(&host, 1, 0);
    for _ in 0..5 {
        assert_eq!(guest.write(0, 0, &[1; 512]), 0);
    }
    assert_eq!(guest.frontend.get_vring_base(0).unwrap(), 5);
    let head = guest.chain(0, 0, OUT, 0, 512);
    guest.publish(0, head);
    let mut guest = guest.reconnect(&host, 0, None);
    assert_eq!(guest.answer(0), Some((u32::from(head), 1)), "the queue starts with a look");
}

#[test]
fn unanswered_requests_complete_after_reconnect() {
    let host = Host::new(false);
    let mut guest = Guest::new(&host, 1, 0);
    let wanted = VhostUserInflight::new(0, 0, 1, QUEUE_SIZE);
    let (inflight, file) = guest.frontend.get_inflight_fd(&wanted).unwrap();
    guest.frontend.set_inflight_fd(&inflight, file.as_raw_fd()).unwrap();
    assert_eq!(guest.write(0, 0, &[1; 512]), 0);
    guest.frontend.set_vring_enable(0, false).unwrap();
    // As an interrupted server leaves them: three requests are taken, and the second is answered. The note of the
    // answer is incomplete.
    for slot in 1..4_u16 {
        guest.put(0, DATA + u64::from(slot) * 0x2000, &[10 + u8::try_from(slot).unwrap(); 512]);
        let head = guest.chain(0, slot, OUT, u64::from(slot), 512);
        guest.publish(0, head);
    }
    let put =
        |at: u64, bytes: &[u8]| std::os::unix::fs::FileExt::write_all_at(&file, bytes, at).unwrap();
    for (slot, counter) in [(1_u64, 8_u64), (2, 9), (3, 7)] {
        put(16 + slot * 3 * 16, &[1]);
        put(16 + slot * 3 * 16 + 8, &counter.to_le_bytes());
    }
    put(16 + 6 * 16 + 6, &0_u16.to_le_bytes());
    put(12, &6_u16.to_le_bytes());
    guest.put(0, 0x2000 + 4 + 8, &6_u32.to_le_bytes());
    guest.put(0, 0x2000 + 2, &2_u16.to_le_bytes());
    let mut guest = guest.reconnect(&host, 0, Some((&inflight, &file)));
    assert_eq!(guest.answer(0).map(|(head, _)| head), Some(6));
    assert_eq!(guest.answer(0).map(|(head, _)| head), Some(9), "the oldest first");
    assert_eq!(guest.answer(0).map(|(head, _)| head), Some(3));
    assert_eq!(guest.read(0, 1, 1536).1, [[11; 512], [0; 512], [13; 512]].concat());
    assert_eq!(guest.write(0, 2, &[2; 512]), 0);
}

#[test]
fn replaced_memory_is_used() {
    let host = Host::new(false);
    let mut guest = Guest::new(&host, 1, 0);
    assert_eq!(guest.write(0, 0, &[3; 512]), 0);
    let new = memory();
    std::io::copy(&mut &guest.memory, &mut &new).unwrap();
    guest.frontend.set_mem_table(&[region(&new)]).unwrap();
    let old = std::mem::replace(&mut guest.memory, new);
    old.set_len(0).unwrap();
    assert_eq!(guest.read(0, 0, 512), (0, vec![3; 512]));
}

#[test]
fn shutdown_releases_the_device() {
    let host = Host::new(false);
    let mut guest = Guest::new(&host, 2, 0);
    assert_eq!(guest.write(1, 0, &[3; 512]), 0);
    host.server.shutdown();
    // The server's function still has it, and the host.
    assert_eq!(Arc::strong_count(&host.spy), 2);
    assert!(guest.is_disconnected());
}

#[test]
fn counts_of_connection_are_exact() {
    let host = Host::new(false);
    assert_eq!(host.server.connection(), None);
    let mut guest = Guest::new(&host, 2, 0);
    assert_eq!(guest.write(0, 1, &[7; 4096]), 0);
    assert_eq!(guest.write(1, 9, &[8; 512]), 0);
    assert_eq!(guest.read(1, 1, 4608).0, 0);
    assert_eq!(guest.execute(0, FLUSH_KIND, 0, 0), 0);
    assert_eq!(guest.read(0, 8192, 512).0, 1, "beyond the end");
    let found = host.server.connection().unwrap();
    assert_eq!((found.requests, found.read_bytes, found.written_bytes), (5, 4608, 4608));
    assert_eq!(found.export.as_deref(), Some("disk"));
    assert!(found.peer.starts_with(&format!("process {} of", std::process::id())), "{found:?}");
}

#[test]
fn disconnected_guest_can_reconnect() {
    let host = Host::new(false);
    let guest = Guest::new(&host, 2, 0);
    let id = host.server.connection().unwrap().id;
    assert_eq!(host.server.disconnect(Some(id + 1), Duration::from_secs(60)), None);
    assert_eq!(host.server.disconnect(Some(id), Duration::from_secs(60)), Some(true));
    assert_eq!(host.server.connection(), None);
    // The server's function still has it, and the host.
    assert_eq!(Arc::strong_count(&host.spy), 2);
    let mut guest = guest.reconnect(&host, 0, None);
    assert_eq!(guest.write(0, 0, &[3; 512]), 0);
    assert!(host.server.connection().unwrap().id > id);
}

#[test]
fn config_tells_the_size() {
    let host = Host::new(false);
    let mut frontend = connect(&host, 0);
    let flags = VhostUserConfigFlags::empty();
    let (_, space) = frontend.get_config(0, 96, flags, &[0; 96]).unwrap();
    assert_eq!(space[..8], 8192_u64.to_le_bytes());
    assert_eq!(space[60..], [0; 36]);
    assert_eq!(frontend.get_queue_num().unwrap(), 64);
}

/// Sleeps of the threads with this name so far, and their processor time in ticks.
fn thread_activity(name: &str) -> Vec<(String, String)> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let read = |task: &std::path::Path, file| std::fs::read_to_string(task.join(file)).ok();
    let mut found = Vec::new();
    for task in tasks.filter_map(|task| task.ok()).map(|task| task.path()) {
        if read(&task, "comm").is_some_and(|comm| comm.trim().ends_with(name)) {
            let status = read(&task, "status").unwrap();
            let sleeps = status.lines().find(|line| line.starts_with("voluntary")).unwrap();
            let stat = read(&task, "stat").unwrap();
            let times: Vec<_> = stat.split(' ').skip(13).take(2).collect();
            found.push((sleeps.to_owned(), times.join(" ")));
        }
    }
    found
}

#[test]
fn idle_queues_sleep() {
    let host = Host::named("idle", false);
    let mut guest = Guest::new(&host, 2, 0);
    for _ in 0..50 {
        assert_eq!(guest.write(0, 0, &[3; 512]), 0);
    }
    std::thread::sleep(std::time::Duration::from_millis(200));
    let before = thread_activity("-idle");
    assert_eq!(before.len(), 3, "two queues and the connection");
    std::thread::sleep(std::time::Duration::from_millis(400));
    assert_eq!(thread_activity("-idle"), before);
}

/// A device that hangs in a write until it is released.
struct Hanging(MemoryDevice, std::sync::Mutex<std::sync::mpsc::Receiver<()>>);

impl everbyte_device::Decorator for Hanging {
    type Inner = MemoryDevice;
    const PASSTHROUGH: everbyte_device::Passthrough = everbyte_device::Passthrough::Split;

    fn inner(&self) -> &MemoryDevice {
        &self.0
    }

    fn write(&self, _: u64, _: &[u8], _: Fua) -> Result<(), everbyte_device::DeviceError> {
        // An error as well: the sender is gone at the end of the test.
        let _ = self.1.lock().unwrap().recv();
        Err(everbyte_device::DeviceError::Gone)
    }
}

#[test]
fn shutdown_leaves_hanging_request_behind() {
    let (release, released) = std::sync::mpsc::channel();
    let device = Hanging(MemoryDevice::new(1 << 20), std::sync::Mutex::new(released));
    let (path, server, _folder) = serve(Arc::new(device), "disk", false);
    let mut host = Host::new(false);
    (host.path, host.server) = (path, server);
    let mut guest = Guest::new(&host, 1, 0);
    let head = guest.chain(0, 0, OUT, 0, 512);
    guest.publish(0, head);
    guest.kick(0);
    while host.server.connection().is_none() {
        std::thread::yield_now();
    }
    let disconnected = host.server.disconnect(None, Duration::from_millis(20));
    assert_eq!(disconnected, Some(false), "its request has not ended");
    host.server.shutdown();
    drop(release);
    assert_eq!(guest.answer(0), Some((u32::from(head), 1)));
    assert_eq!(guest.status(0, 0), 1);
}
