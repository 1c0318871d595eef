//! The simulated medium as a medium: loads, counters, sends, failures.

use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use everbyte_crash::{Plan, SimMedium};
use everbyte_media::{
    BlockNo, Counters, LineMask, MediaError, Medium, PersistenceDomain, Piece, PoisonedRange,
    PoolOffset,
};

fn at(offset: u64) -> PoolOffset {
    PoolOffset(offset)
}

#[test]
fn passes_the_suite_of_all_media() {
    everbyte_testkit::medium::check_medium(&SimMedium::new(1 << 20));
    everbyte_testkit::medium::check_window(&SimMedium::new(4 << 20));
}

#[test]
fn so_does_one_that_a_crash_left() {
    let medium = SimMedium::new(1 << 17);
    medium.store(at(4000), &[7; 9000]);
    everbyte_testkit::medium::check_medium(&medium.crash_state().boot(Plan::Seeded(1)));
}

#[test]
fn loads_see_the_newest_store() {
    let medium = SimMedium::new(8192);
    assert_eq!((medium.len(), medium.persistence_domain()), (8192, PersistenceDomain::Power));
    medium.store(at(60), &[1; 10]);
    medium.stream(at(66), &[2; 100]);
    medium.store_word(at(64), 0x0102_0304_0506_0708);
    let mut found = [9; 20];
    medium.read(at(58), &mut found);
    let wanted = [0, 0, 1, 1, 1, 1, 8, 7, 6, 5, 4, 3, 2, 1, 2, 2, 2, 2, 2, 2];
    assert_eq!(found, wanted);
    assert_eq!(medium.load_word(at(64)), 0x0102_0304_0506_0708);
}

#[test]
fn changed_lines_are_those_that_differ() {
    let medium = SimMedium::new(8192);
    medium.store(at(4096 + 100), &[7]);
    let mut new = [0; 200];
    assert_eq!(medium.changed_lines(BlockNo(1), 60, &new), LineMask(0b10));
    new[0] = 1;
    new[40] = 7;
    assert_eq!(medium.changed_lines(BlockNo(1), 60, &new), LineMask(0b1));
    new[199] = 1;
    assert_eq!(medium.changed_lines(BlockNo(1), 60, &new), LineMask(0b10001));
    assert_eq!(medium.changed_lines(BlockNo(1), 4096, &[]), LineMask::EMPTY);
}

#[test]
fn counters_are_exact() {
    let medium = SimMedium::new(8192);
    medium.store(at(60), &[1; 10]);
    medium.store_word(at(64), 1);
    medium.stream(at(0), &[1; 4096]);
    medium.store(at(8192), &[]);
    medium.flush(at(60), 10);
    medium.flush(at(0), 0);
    medium.fence().unwrap();
    let wanted = Counters {
        bytes_stored: 10 + 8 + 4096,
        lines_stored: 2 + 1 + 64,
        lines_flushed: 2,
        fences: 1,
        modelled_ns: 0,
    };
    assert_eq!(medium.counters(), wanted);
    assert_eq!(medium.ops(), 5);
}

#[test]
fn booted_media_start_over_but_keep_what_was_durable() {
    let medium = SimMedium::from_image(vec![3; 4096]);
    medium.store_word(at(128), 1);
    medium.flush(at(128), 8);
    medium.fence().unwrap();
    medium.store_word(at(192), 1);
    let booted = medium.crash_state().boot(Plan::nothing());
    assert_eq!(booted.load_word(at(128)), 1);
    assert_eq!(booted.load_word(at(192)), 0x0303_0303_0303_0303);
    assert_eq!(booted.choices().len(), 1);
    assert_eq!((booted.ops(), booted.counters()), (0, Counters::default()));
    let mut wanted = vec![3; 4096];
    wanted[128..136].copy_from_slice(&1_u64.to_le_bytes());
    assert_eq!(booted.image(), wanted);
}

#[test]
fn crash_state_of_booted_medium_builds_on_the_first() {
    let medium = SimMedium::new(4096);
    medium.store_word(at(0), 1);
    medium.store_word(at(64), 1);
    let booted = medium.crash_state().boot(Plan::everything());
    assert_eq!(booted.load_word(at(0)), 1);
    booted.store_word(at(128), 1);
    let again = booted.crash_state();
    assert_eq!(again.open_lines(), 2, "line 0 is decided, 64 is not, 128 is new");
    let last = again.boot(Plan::nothing());
    assert_eq!([0, 64, 128].map(|offset| last.load_word(at(offset))), [1, 0, 0]);
}

#[test]
fn sends_what_it_holds() {
    let medium = SimMedium::new(4096);
    medium.store(at(10), b"stored");
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let pieces = [
        Piece::Bytes(b"head "),
        Piece::Stored { at: at(10), len: 6 },
        Piece::Zeroes { len: 3 },
        Piece::Bytes(b"end"),
    ];
    assert_eq!(medium.send(ours.as_fd(), &pieces).unwrap(), 17);
    assert_eq!(medium.send(ours.as_fd(), &[]).unwrap(), 0);
    let mut found = [0; 17];
    theirs.read_exact(&mut found).unwrap();
    assert_eq!(&found, b"head stored\0\0\0end");
    let much = [Piece::Zeroes { len: 1 << 20 }];
    let mut sent = 0;
    loop {
        match medium.send(ours.as_fd(), &much).unwrap() {
            0 => break,
            more => sent += more,
        }
    }
    assert!(sent > 0, "a full socket takes nothing more");
    drop(theirs);
    medium.send(ours.as_fd(), &much).expect_err("nobody reads");
}

#[test]
fn failed_medium_keeps_its_first_reason() {
    let medium = SimMedium::new(4096);
    medium.check().unwrap();
    medium.store_word(at(0), 1);
    medium.flush(at(0), 8);
    medium.fail(MediaError::Poisoned { at: at(64) });
    medium.fail(MediaError::Poisoned { at: at(128) });
    assert!(medium.fence().is_err());
    let reason = medium.check().unwrap_err();
    assert!(matches!(reason, MediaError::Poisoned { at } if at.0 == 64));
    assert_eq!(medium.crash_state().open_lines(), 1, "a failed fence promises nothing");
    assert_eq!(medium.counters().fences, 1);
}

#[test]
fn bad_lines_are_found_by_loads_and_lose_stores() {
    let medium = SimMedium::new(8192);
    medium.store(at(0), &[7; 256]);
    medium.inject_poison(at(64), 1);
    medium.inject_poison(at(4096), 128);
    assert!(!medium.has_poison(), "nobody looked");
    let mut bytes = [1; 96];
    medium.read(at(48), &mut bytes);
    assert_eq!(bytes[..16], [7; 16]);
    assert_eq!(bytes[16..80], [0; 64]);
    assert_eq!(bytes[80..], [7; 16]);
    assert_eq!(medium.poisoned_ranges(), [PoisonedRange { at: at(64), len: 64 }]);
    assert!(medium.check_range(at(0), 64).is_ok());
    assert!(medium.check_range(at(120), 8).is_err());
    medium.probe(at(4096), 4096);
    assert_eq!(medium.poisoned_in(at(4100), 4), Some(at(4100)));
    assert_eq!(medium.poisoned_ranges().len(), 3);
    medium.check().expect("loads fail no medium");
    medium.store(at(128), &[1; 8]);
    medium.fence().expect("nothing is lost");
    medium.stream(at(4000), &[1; 200]);
    assert!(matches!(medium.fence(), Err(MediaError::StoreLost { at: lost }) if lost == at(4096)));
}

/// Returns the message of the panic of `then` on another thread after this one has streamed 20
/// bytes at 100; `None` if it does not panic.
fn after_a_stream(fenced: bool, then: impl FnOnce(&SimMedium) + Send) -> Option<String> {
    let medium = SimMedium::new(4096);
    medium.stream(at(100), &[1; 20]);
    if fenced {
        medium.fence().unwrap();
    }
    // The streaming thread itself may do as it likes.
    medium.store(at(112), &[2; 8]);
    let ended = std::thread::scope(|scope| scope.spawn(|| then(&medium)).join());
    ended.err().map(|panic| panic.downcast_ref::<String>().unwrap().clone())
}

#[test]
fn access_to_unfenced_stream_of_another_panics() {
    type Use = fn(&SimMedium);
    let uses: [(&str, Use); 4] = [
        ("reads", |medium| medium.read(at(119), &mut [0; 9])),
        ("stores", |medium| medium.store(at(90), &[3; 11])),
        ("stores", |medium| medium.store_word(at(104), 3)),
        ("streams", |medium| medium.stream(at(64), &[3; 64])),
    ];
    for (what, then) in uses {
        let message = after_a_stream(false, then).expect(what);
        assert!(message.starts_with(&format!("thread 1 {what} ")), "{message}");
        assert!(message.ends_with("that it has not fenced"), "{message}");
        assert_eq!(after_a_stream(true, then), None);
    }
    let beside = |medium: &SimMedium| {
        medium.store(at(90), &[3; 10]);
        medium.store_word(at(120), 3);
        medium.flush(at(64), 64);
        medium.fence().unwrap();
    };
    assert_eq!(after_a_stream(false, beside), None);
}

#[test]
#[should_panic(expected = "leave a medium of 4096 bytes")]
fn accesses_beyond_the_end_panic() {
    SimMedium::new(4096).store(at(4090), &[0; 8]);
}
