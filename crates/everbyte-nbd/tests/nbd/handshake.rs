//! Options, one by one.

use std::sync::Arc;

use everbyte_device::MemoryDevice;

use crate::support::{Answer, Fixture, context_query, go, request, string};

const ACK: u32 = 1;
const ERROR: u32 = 1 << 31;
const UNSUP: u32 = ERROR | 1;
const INVALID: u32 = ERROR | 3;
const UNKNOWN: u32 = ERROR | 6;
const TOO_BIG: u32 = ERROR | 9;

/// All flags of a writable export without structured replies.
const FLAGS: u16 = 1 | 4 | 8 | 32 | 64 | 256 | 1024 | 2048;

fn export_info(size: u64, flags: u16) -> (u32, Vec<u8>) {
    (3, [&[0, 0][..], &size.to_be_bytes(), &flags.to_be_bytes()].concat())
}

fn block_size_info() -> (u32, Vec<u8>) {
    let sizes = [1_u32, 4096, 32 << 20].map(u32::to_be_bytes).concat();
    (3, [vec![0, 3], sizes].concat())
}

#[test]
fn export_name_pads_only_if_asked_to() {
    let fixture = Fixture::memory();
    for (client_flags, padding) in [(1_u32, 124), (3, 0), (2, 0), (0, 124)] {
        let mut raw = fixture.raw();
        raw.take(18);
        raw.put(&client_flags.to_be_bytes());
        raw.option(1, b"disk");
        assert_eq!(raw.u64(), 1 << 20);
        assert_eq!(raw.take(2), FLAGS.to_be_bytes());
        assert_eq!(raw.take(padding), vec![0; padding]);
        // The next byte is the first reply's.
        raw.put(&request(3, 0, 7, 0, 0));
        assert_eq!(raw.answer(), Answer::Simple { errno: 0, cookie: 7 });
    }
}

#[test]
fn export_name_failure_closes() {
    let fixture = Fixture::memory();
    for name in [&b"none"[..], &[0xff, 0xfe], &[b'x'; 5000]] {
        let mut raw = fixture.greeted();
        raw.option(1, name);
        assert!(raw.is_closed());
    }
    fixture.assert_alive();
}

#[test]
fn unknown_client_flags_close() {
    let fixture = Fixture::memory();
    for flags in [4_u32, 7, 1 << 31, u32::MAX] {
        let mut raw = fixture.raw();
        raw.take(18);
        raw.put(&flags.to_be_bytes());
        assert!(raw.is_closed(), "{flags:#x}");
    }
    fixture.await_stats(|stats| stats.connections_dropped == 4);
}

#[test]
fn unknown_options_are_refused_and_parsing_goes_on() {
    let fixture = Fixture::memory();
    let mut raw = fixture.greeted();
    // 5 is STARTTLS, 11 asks for extended headers.
    for number in [0, 4, 5, 11, 12, u32::MAX] {
        for data in [&b""[..], &[7; 60_000]] {
            raw.option(number, data);
            assert_eq!(raw.option_reply(number).0, UNSUP, "{number}");
        }
    }
    raw.option(7, &go("disk", &[]));
    assert_eq!(raw.option_reply(7), export_info(1 << 20, FLAGS));
}

#[test]
fn abort_is_acknowledged_and_closes() {
    let fixture = Fixture::memory();
    let mut raw = fixture.greeted();
    raw.option(2, b"");
    assert_eq!(raw.option_reply(2), (ACK, vec![]));
    assert!(raw.is_closed());
    fixture.await_stats(|stats| stats.connections == 0);
    assert_eq!(fixture.server.stats().connections_dropped, 0);
}

#[test]
fn list_tells_all_exports() {
    let fixture = Fixture::memory();
    fixture.shelf.0.lock().insert("ä b".to_owned(), Arc::new(MemoryDevice::new(1)));
    let mut raw = fixture.greeted();
    raw.option(3, b"x");
    assert_eq!(raw.option_reply(3).0, INVALID);
    raw.option(3, b"");
    assert_eq!(raw.option_reply(3), (2, [string("disk"), b"about disk".to_vec()].concat()));
    let second = [string("ä b"), "about ä b".as_bytes().to_vec()].concat();
    assert_eq!(raw.option_reply(3), (2, second));
    assert_eq!(raw.option_reply(3), (ACK, vec![]));
    let list = everbyte_nbd::Client::list(fixture.address()).unwrap();
    assert_eq!(list.len(), 2);
    assert_eq!((&*list[1].name, &*list[1].description), ("ä b", "about ä b"));
}

#[test]
fn info_and_go_tell_what_is_wanted() {
    let fixture = Fixture::memory();
    let mut raw = fixture.greeted();
    for (number, name) in [(6, ""), (6, "disk"), (7, "")] {
        raw.option(number, &go(name, &[1, 2, 3, 77]));
        assert_eq!(raw.option_reply(number), export_info(1 << 20, FLAGS));
        assert_eq!(raw.option_reply(number), block_size_info());
        assert_eq!(raw.option_reply(number), (3, b"\0\x01disk".to_vec()));
        assert_eq!(raw.option_reply(number), (3, b"\0\x02about disk".to_vec()));
        assert_eq!(raw.option_reply(number), (ACK, vec![]));
    }
    // No padding after GO.
    raw.put(&request(3, 0, 7, 0, 0));
    assert_eq!(raw.answer(), Answer::Simple { errno: 0, cookie: 7 });
}

#[test]
fn go_refuses_and_goes_on() {
    let fixture = Fixture::memory();
    fixture.shelf.0.lock().insert("other".to_owned(), Arc::new(MemoryDevice::new(1)));
    let mut raw = fixture.greeted();
    let count_too_large = [string("disk"), vec![0, 3, 0, 0]].concat();
    let trailing = [go("disk", &[]), vec![1]].concat();
    let long_name = "x".repeat(4097);
    let not_utf8 = [&[0, 0, 0, 1, 0xff, 0, 0][..]].concat();
    for number in [6, 7] {
        for (data, kind) in [
            (go("none", &[]), UNKNOWN),
            // There are two exports, so none is the default.
            (go("", &[]), UNKNOWN),
            (vec![], INVALID),
            (vec![0xff; 4], INVALID),
            (string("disk"), INVALID),
            (count_too_large.clone(), INVALID),
            (trailing.clone(), INVALID),
            (not_utf8.clone(), INVALID),
            (go(&long_name, &[]), TOO_BIG),
        ] {
            raw.option(number, &data);
            assert_eq!(raw.option_reply(number).0, kind, "{data:?}");
        }
    }
    raw.option(7, &go("other", &[]));
    assert_eq!(raw.option_reply(7), export_info(1, FLAGS));
}

#[test]
fn read_only_and_structured_show_in_the_flags() {
    let device = Arc::new(MemoryDevice::new(4096));
    device.set_read_only(true);
    let fixture = Fixture::new(device);
    let mut raw = fixture.greeted();
    raw.option(8, b"x");
    assert_eq!(raw.option_reply(8).0, INVALID);
    let read_only = 1 | 2 | 4 | 8 | 256 | 1024;
    raw.option(6, &go("disk", &[]));
    assert_eq!(raw.option_reply(6), export_info(4096, read_only));
    while raw.option_reply(6).0 != ACK {}
    raw.option(8, b"");
    assert_eq!(raw.option_reply(8), (ACK, vec![]));
    raw.option(7, &go("disk", &[]));
    assert_eq!(raw.option_reply(7), export_info(4096, read_only | 128));
}

#[test]
fn contexts_are_listed_and_selected() {
    let fixture = Fixture::memory();
    let mut raw = fixture.greeted();
    let query = context_query("disk", &["base:allocation"]);
    for number in [9, 10] {
        raw.option(number, &query);
        assert_eq!(raw.option_reply(number).0, INVALID, "structured replies come first");
    }
    raw.option(8, b"");
    raw.option_reply(8);
    for (number, queries, found) in [
        (9, &[][..], true),
        (9, &["base:"][..], true),
        (9, &["x:y", "base:allocation"][..], true),
        (9, &["x:y"][..], false),
        (10, &[][..], false),
        (10, &["base:"][..], false),
        (10, &["qemu:dirty", "base:allocation", "base:allocation"][..], true),
    ] {
        raw.option(number, &context_query("disk", queries));
        if found {
            let id = [0, 0, 0, u8::from(number == 10)];
            let context = [&id[..], b"base:allocation"].concat();
            assert_eq!(raw.option_reply(number), (4, context), "{queries:?}");
        }
        assert_eq!(raw.option_reply(number), (ACK, vec![]), "{queries:?}");
    }
    raw.option(10, &context_query("none", &["base:allocation"]));
    assert_eq!(raw.option_reply(10).0, UNKNOWN);
    for data in [&query[..query.len() - 1], &[&query[..], b"x"].concat(), &[0xff; 12]] {
        raw.option(10, data);
        assert_eq!(raw.option_reply(10).0, INVALID);
    }
    // The failed selections have undone the good one.
    raw.option(7, &go("disk", &[]));
    while raw.option_reply(7).0 != ACK {}
    assert_eq!(raw.errno(7, 0, 0, 4096), 22);
}

#[test]
fn metadata_context_holds_for_its_export_only() {
    let fixture = Fixture::memory();
    fixture.shelf.0.lock().insert("other".to_owned(), Arc::new(MemoryDevice::new(8192)));
    let mut raw = fixture.greeted();
    raw.option(8, b"");
    raw.option_reply(8);
    raw.option(10, &context_query("disk", &["base:allocation"]));
    while raw.option_reply(10).0 != ACK {}
    raw.option(7, &go("other", &[]));
    while raw.option_reply(7).0 != ACK {}
    assert_eq!(raw.errno(7, 0, 0, 4096), 22);
}
