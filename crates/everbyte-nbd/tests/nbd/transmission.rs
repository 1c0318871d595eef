//! Requests, one by one and pipelined.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use everbyte_device::{BlockDevice, Fua, Hole, MemoryDevice};
use everbyte_nbd::{Client, Reply};

use crate::support::{Answer, Fixture, SIZE, WatchedDevice, request};

const READ: u16 = 0;
const WRITE: u16 = 1;
const FLUSH: u16 = 3;
const TRIM: u16 = 4;
const CACHE: u16 = 5;
const ZEROES: u16 = 6;
const STATUS: u16 = 7;

const FUA: u16 = 1;
const NO_HOLE: u16 = 2;
const DF: u16 = 4;
const REQ_ONE: u16 = 8;
const FAST_ZERO: u16 = 16;

const EPERM: u32 = 1;
const EINVAL: u32 = 22;
const ENOSPC: u32 = 28;
const EOVERFLOW: u32 = 75;
const ENOTSUP: u32 = 95;
const ESHUTDOWN: u32 = 108;

#[test]
fn simple_reads_and_writes() {
    let fixture = Fixture::memory();
    let mut raw = fixture.simple();
    raw.put(&[request(WRITE, 0, 1, 4095, 3), b"abc".to_vec()].concat());
    assert_eq!(raw.answer(), Answer::Simple { errno: 0, cookie: 1 });
    raw.put(&request(READ, 0, u64::MAX, 4094, 5));
    assert_eq!(raw.answer(), Answer::Simple { errno: 0, cookie: u64::MAX });
    assert_eq!(raw.take(5), b"\0abc\0");
    raw.put(&request(READ, 0, 3, SIZE, 1));
    assert_eq!(raw.answer(), Answer::Simple { errno: EINVAL, cookie: 3 });
    raw.put(&request(READ, 0, 4, SIZE, 0));
    assert_eq!(raw.answer(), Answer::Simple { errno: 0, cookie: 4 });
    // Neither was agreed on.
    assert_eq!(raw.errno(READ, DF, 0, 1), EINVAL);
    assert_eq!(raw.errno(STATUS, 0, 0, 1), EINVAL);
}

#[test]
fn structured_reads_are_one_chunk_and_never_simple() {
    let fixture = Fixture::memory();
    let mut raw = fixture.structured();
    raw.put(&[request(WRITE, 0, 1, 10, 3), b"abc".to_vec()].concat());
    raw.answer();
    for (flags, cookie) in [(0, 2), (DF, 2), (DF | FUA, 5)] {
        raw.put(&request(READ, flags, cookie, 9, 5));
        let payload = [&9_u64.to_be_bytes()[..], b"\0abc\0"].concat();
        assert_eq!(raw.answer(), Answer::Chunk(1, 1, cookie, payload));
    }
    raw.put(&request(READ, DF, 6, 0, 65_536));
    assert!(matches!(raw.answer(), Answer::Chunk(1, 1, 6, data) if data.len() == 65_544));
    raw.put(&request(READ, 0, 7, 0, 0));
    assert_eq!(raw.answer(), Answer::Chunk(1, 0, 7, vec![]));
    for (offset, len, flags, errno) in [
        (SIZE - 1, 2, 0, EINVAL),
        (u64::MAX, 1, 0, EINVAL),
        (u64::MAX, u32::MAX, 0, EINVAL),
        (0, (32 << 20) + 1, 0, EINVAL),
        (0, u32::MAX, DF, EOVERFLOW),
        (SIZE + 1, 0, 0, EINVAL),
    ] {
        raw.put(&request(READ, flags, 8, offset, len));
        let answer = raw.answer();
        assert!(matches!(answer, Answer::Chunk(1, 0x8001, 8, _)), "{answer:?}");
        assert_eq!(answer.errno(), errno, "{offset}+{len}");
    }
}

#[test]
fn errors_are_those_of_the_protocol() {
    let fixture = Fixture::memory();
    let mut raw = fixture.structured();
    for (command, errno) in
        [(WRITE, ENOSPC), (ZEROES, ENOSPC), (TRIM, EINVAL), (CACHE, EINVAL), (STATUS, EINVAL)]
    {
        for (offset, len) in [(SIZE, 1), (SIZE - 1, 2), (u64::MAX, 1), (u64::MAX - 1, 4096)] {
            assert_eq!(raw.errno(command, 0, offset, len), errno, "{command} {offset}+{len}");
        }
        if command != WRITE {
            assert_eq!(raw.errno(command, 0, u64::MAX, u32::MAX), errno);
        }
    }
    assert_eq!(raw.errno(STATUS, 0, 0, 0), EINVAL);
    for command in [8, 9, 100, u16::MAX] {
        assert_eq!(raw.errno(command, 0, 0, 0), EINVAL, "command {command}");
    }
    for (command, flags) in [
        (READ, NO_HOLE),
        (READ, 32),
        (WRITE, DF),
        (WRITE, FAST_ZERO),
        (WRITE, 1 << 15),
        (FLUSH, REQ_ONE),
        (TRIM, NO_HOLE),
        (CACHE, 32),
        (ZEROES, REQ_ONE),
        (STATUS, DF),
    ] {
        assert_eq!(raw.errno(command, flags, 0, 512), EINVAL, "{command} {flags:#x}");
    }
    assert!(fixture.server.stats().errors > 30);
    // Nothing of all that was done, and the stream is still in step.
    assert_eq!(raw.errno(WRITE, 0, 0, 70_000), 0);
}

#[test]
fn fua_of_every_command_reaches_the_device() {
    let device = WatchedDevice::new();
    let fixture = Fixture::new(Arc::clone(&device) as _);
    let mut raw = fixture.structured();
    for command in [READ, WRITE, FLUSH, TRIM, CACHE, ZEROES, STATUS] {
        let len = if command == FLUSH { 0 } else { 512 };
        assert_eq!(raw.errno(command, FUA, 0, len), 0, "command {command}");
    }
    assert_eq!(raw.errno(ZEROES, NO_HOLE | FAST_ZERO, 1, 2), 0);
    assert_eq!(raw.errno(STATUS, REQ_ONE, 0, 4096), 0);
    let calls = device.calls.lock().clone();
    let expected = [
        "read 0+512",
        "write 0+512 Yes",
        "flush",
        "discard 0+512 Yes",
        "cache 0+512",
        "zero 0+512 Allowed false Yes",
        "status 0+512 1024",
        "zero 1+2 Forbidden true No",
        "status 0+4096 1",
    ];
    assert_eq!(calls, expected);
}

#[test]
fn read_only_refuses_changes_and_nothing_else() {
    let device = Arc::new(MemoryDevice::new(SIZE));
    device.set_read_only(true);
    let fixture = Fixture::new(device);
    let mut raw = fixture.structured();
    for command in [WRITE, TRIM, ZEROES] {
        assert_eq!(raw.errno(command, 0, 0, 4096), EPERM);
        assert_eq!(raw.errno(command, FUA, SIZE, 4096), EPERM);
    }
    assert_eq!(raw.errno(WRITE, 0, 0, 200_000), EPERM);
    for command in [READ, FLUSH, CACHE, STATUS] {
        assert_eq!(raw.errno(command, 0, 0, 4096), 0);
    }
}

#[test]
fn slow_zeroes_and_removed_devices() {
    let device = WatchedDevice::new();
    let fixture = Fixture::new(Arc::clone(&device) as _);
    let mut raw = fixture.structured();
    device.slow_zeroes.store(true, Ordering::SeqCst);
    assert_eq!(raw.errno(ZEROES, FAST_ZERO, 0, 4096), ENOTSUP);
    assert_eq!(raw.errno(ZEROES, 0, 0, 4096), 0);
    device.gone.store(true, Ordering::SeqCst);
    for command in [READ, WRITE, FLUSH, TRIM, CACHE, ZEROES, STATUS] {
        assert_eq!(raw.errno(command, 0, 0, 512), ESHUTDOWN, "command {command}");
    }
}

#[test]
fn block_status_tells_extents() {
    let fixture = Fixture::memory();
    let mut client = Client::connect(fixture.address(), "").unwrap();
    assert!(client.can_block_status());
    client.write(8192, &[1; 4096], Fua::No).unwrap();
    client.write_zeroes(16_384, 4096, Hole::Forbidden, false, Fua::No).unwrap();
    let kinds = |extents: Vec<everbyte_device::Extent>| -> Vec<_> {
        extents.into_iter().map(|e| (e.len, e.hole, e.zero)).collect()
    };
    let all = [
        (7192, true, true),
        (4096, false, false),
        (4096, true, true),
        (4096, false, true),
        (10, true, true),
    ];
    assert_eq!(kinds(client.block_status(1000, 19_490, false).unwrap()), all);
    assert_eq!(kinds(client.block_status(1000, 19_490, true).unwrap()), all[..1]);
    assert_eq!(kinds(client.block_status(1000, 10, true).unwrap()), [(10, true, true)]);
    client.trim(8192, 4096, Fua::Yes).unwrap();
    assert_eq!(kinds(client.block_status(0, 16_384, true).unwrap()), [(16_384, true, true)]);
    client.disconnect().unwrap();
}

#[test]
fn writes_that_arrive_together_are_one_batch() {
    let device = WatchedDevice::new();
    let fixture = Fixture::new(Arc::clone(&device) as _);
    let mut raw = fixture.simple();
    // The first write holds the connection while the others arrive.
    device.close_gate();
    raw.put(&[request(WRITE, 0, 99, 0, 1), vec![9]].concat());
    device.await_waiting();
    let mut pipelined = Vec::new();
    for cookie in 0..16 {
        pipelined.extend(request(WRITE, 0, cookie, cookie * 4096, 512));
        pipelined.extend(vec![u8::try_from(cookie).unwrap(); 512]);
    }
    // One beyond the end, one flush after them all.
    pipelined.extend(request(WRITE, 0, 16, SIZE, 1));
    pipelined.push(0);
    pipelined.extend(request(FLUSH, 0, 17, 0, 0));
    raw.put(&pipelined);
    device.open_gate();
    assert_eq!(raw.answer(), Answer::Simple { errno: 0, cookie: 99 });
    for cookie in 0..16 {
        assert_eq!(raw.answer(), Answer::Simple { errno: 0, cookie });
    }
    assert_eq!(raw.answer(), Answer::Simple { errno: ENOSPC, cookie: 16 });
    assert_eq!(raw.answer(), Answer::Simple { errno: 0, cookie: 17 });
    assert_eq!(*device.batches.lock(), [17]);
    assert_eq!(device.calls.lock().last().unwrap(), "flush");
    for cookie in 0..16_u8 {
        let mut got = [0xee; 512];
        device.inner.read(u64::from(cookie) * 4096, &mut got).unwrap();
        assert_eq!(got, [cookie; 512]);
    }
    let stats = fixture.server.stats();
    assert_eq!((stats.requests, stats.errors, stats.flushes), (19, 1, 1));
    assert_eq!(stats.written_bytes, 16 * 512 + 1);
}

#[test]
fn batches_are_bounded_and_in_order() {
    let device = WatchedDevice::new();
    let fixture = Fixture::new(Arc::clone(&device) as _);
    let mut raw = fixture.simple();
    device.close_gate();
    raw.put(&[request(WRITE, 0, 500, 0, 1), vec![9]].concat());
    device.await_waiting();
    let mut pipelined = Vec::new();
    for cookie in 0..200 {
        // All write the same byte; the last one wins.
        pipelined.extend(request(WRITE, 0, cookie, 5, 1));
        pipelined.push(u8::try_from(cookie).unwrap());
    }
    pipelined.extend(request(READ, 0, 1000, 5, 1));
    raw.put(&pipelined);
    device.open_gate();
    for _ in 0..201 {
        raw.answer();
    }
    assert_eq!(raw.answer(), Answer::Simple { errno: 0, cookie: 1000 });
    assert_eq!(raw.take(1), [199]);
    assert_eq!(*device.batches.lock(), [64, 64, 64, 8]);
}

#[test]
fn reused_cookie_is_accepted() {
    let fixture = Fixture::memory();
    let mut raw = fixture.structured();
    let mut both = request(READ, 0, 4, 0, 1);
    both.extend(request(FLUSH, 0, 4, 0, 0));
    both.extend(request(READ, 0, 4, 1, 1));
    raw.put(&both);
    assert!(matches!(raw.answer(), Answer::Chunk(1, 1, 4, _)));
    assert_eq!(raw.answer(), Answer::Simple { errno: 0, cookie: 4 });
    assert!(matches!(raw.answer(), Answer::Chunk(1, 1, 4, _)));
}

#[test]
fn replies_come_before_a_goodbye_takes_effect() {
    let fixture = Fixture::memory();
    let mut raw = fixture.simple();
    let mut stream = [request(WRITE, 0, 1, 0, 2), vec![1, 2]].concat();
    stream.extend(request(READ, 0, 2, 0, 2));
    stream.extend(request(2, 0, 3, 0, 0));
    stream.extend(request(READ, 0, 4, 0, 2));
    raw.put(&stream);
    assert_eq!(raw.answer(), Answer::Simple { errno: 0, cookie: 1 });
    assert_eq!(raw.answer(), Answer::Simple { errno: 0, cookie: 2 });
    assert_eq!(raw.take(2), [1, 2]);
    assert!(raw.is_closed());
}

#[test]
fn large_requests_and_deep_queues_both_ways() {
    let device: Arc<MemoryDevice> = Arc::new(MemoryDevice::new(64 << 20));
    let fixture = Fixture::new(Arc::clone(&device) as _);
    let mut client = Client::connect(fixture.address(), "disk").unwrap();
    let data: Vec<u8> = (0..(32 << 20)).map(|i: u32| i.to_le_bytes()[1] ^ 0x5a).collect();
    client.write(1, &data, Fua::No).unwrap();
    assert!(client.read(1, data.len()).unwrap() == data);
    assert!(client.submit_read(0, (32 << 20) + 1).is_err());
    // Far more than the sockets hold, in both directions.
    let mut expected = Vec::new();
    for i in 0..12_u64 {
        let piece = vec![u8::try_from(i).unwrap(); 1 << 20];
        expected.push((client.submit_write(i << 20, &piece, Fua::No).unwrap(), None));
        expected.push((client.submit_read(i << 20, 1 << 20).unwrap(), Some(piece)));
    }
    expected.reverse();
    for (cookie, data) in expected {
        let reply = client.wait(cookie).unwrap();
        assert!(reply == data.map_or(Reply::Done, Reply::Data), "{cookie:?}");
        assert!(client.wait(cookie).is_err(), "a reply is taken once");
    }
    client.disconnect().unwrap();
}

#[test]
fn small_reads_pipelined_with_writes_see_them() {
    let fixture = Fixture::memory();
    let mut client = Client::connect(fixture.address(), "disk").unwrap();
    let mut cookies = Vec::new();
    for i in 0..500_u64 {
        let byte = u8::try_from(i % 251).unwrap();
        client.submit_write(i * 700, &[byte; 700], Fua::No).unwrap();
        cookies.push((client.submit_read(i * 700 + 5, 600).unwrap(), byte));
    }
    for (cookie, byte) in cookies {
        assert_eq!(client.wait(cookie).unwrap(), Reply::Data(vec![byte; 600]));
    }
}

#[test]
fn flush_covers_all_connections() {
    let device = WatchedDevice::new();
    let fixture = Fixture::new(Arc::clone(&device) as _);
    let mut writer = Client::connect(fixture.address(), "disk").unwrap();
    let mut flusher = Client::connect(fixture.address(), "disk").unwrap();
    assert!(writer.can_multi_conn());
    writer.write(0, b"one", Fua::No).unwrap();
    flusher.flush().unwrap();
    assert_eq!(flusher.read(0, 3).unwrap(), b"one");
    assert_eq!(*device.calls.lock(), ["write 0+3 No", "flush", "read 0+3"]);
}
