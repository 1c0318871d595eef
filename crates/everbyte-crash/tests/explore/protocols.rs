//! Sound toy protocols pass; each of their steps left out is caught.

use everbyte_crash::{Explorer, ReplayError};
use everbyte_media::{Medium, PoolOffset};

use crate::toy::{Toy, fence, flush, get, happened, persist, put};

/// Write a value, then a flag that vouches for it. `skip` leaves one step out.
pub(crate) fn publish(skip: usize) -> Toy<Option<u64>> {
    Toy::new(
        move |m, log| {
            let steps: [&dyn Fn(); 6] = [
                &|| put(m, 0, 42),
                &|| flush(m, 0),
                &|| fence(m),
                &|| put(m, 64, 1),
                &|| flush(m, 64),
                &|| fence(m),
            ];
            for (i, step) in steps.iter().enumerate() {
                if i != skip {
                    step();
                }
            }
            log.note("published");
        },
        |m| Ok((get(m, 64) == 1).then(|| get(m, 0))),
        |value, crash| match value {
            Some(42) => Ok(()),
            None if !happened(crash, "published") => Ok(()),
            other => Err(format!("found {other:?}")),
        },
    )
}

#[test]
fn every_step_of_publishing_is_needed() {
    let summary = Explorer::default().explore(&publish(usize::MAX)).unwrap();
    assert!(summary.is_exhaustive(), "{summary}");
    assert_eq!((summary.points, summary.points_alike), (7, 2));
    for skip in 0..6 {
        let failure = Explorer::default().explore(&publish(skip)).expect_err("a planted bug");
        assert!(failure.message.starts_with("found"), "{failure}");
    }
}

const OLD: u64 = 7;
const NEW: u64 = 8;
const VALID: u64 = 256;

/// Two words that change together, with an undo log at 128 and 192.
pub(crate) fn undo(flush_restored: bool) -> Toy<(u64, u64)> {
    let toy = Toy::new(
        |m, log| {
            put(m, 128, OLD);
            put(m, 192, OLD);
            m.flush(PoolOffset(128), 128);
            fence(m);
            persist(m, VALID, 1);
            put(m, 0, NEW);
            put(m, 64, NEW);
            m.flush(PoolOffset(0), 128);
            fence(m);
            persist(m, VALID, 0);
            log.note("committed");
        },
        move |m| {
            if get(m, VALID) == 1 {
                put(m, 0, get(m, 128));
                put(m, 64, get(m, 192));
                if flush_restored {
                    m.flush(PoolOffset(0), 128);
                    fence(m);
                }
                persist(m, VALID, 0);
            }
            Ok((get(m, 0), get(m, 64)))
        },
        |found, crash| match found {
            (NEW, NEW) => Ok(()),
            (OLD, OLD) if !happened(crash, "committed") => Ok(()),
            other => Err(format!("found {other:?}")),
        },
    );
    toy.prepared(|m| {
        put(m, 0, OLD);
        put(m, 64, OLD);
    })
}

#[test]
fn crash_in_recovery_shows_unflushed_restore() {
    let shallow = Explorer { nested_depth: 0, ..Explorer::default() };
    let deep = Explorer {
        nested_images_max: usize::MAX,
        nested_runs_max: usize::MAX,
        ..Explorer::default()
    };
    assert!(shallow.explore(&undo(true)).unwrap().is_exhaustive());
    assert!(shallow.explore(&undo(false)).unwrap().is_exhaustive(), "it needs a nested crash");
    let sound = deep.explore(&undo(true)).unwrap();
    assert!(sound.is_exhaustive(), "{sound}");
    assert!(sound.nested_images > 0);

    let failure = deep.explore(&undo(false)).unwrap_err();
    assert_eq!(failure.nested.len(), 1, "{failure}");
    assert!(!failure.nested[0].trace.is_empty());
    let again = deep.replay(&undo(false), &failure.replay).unwrap_err();
    let ReplayError::Failed(again) = again else { panic!("{again}") };
    assert_eq!(again.to_string(), failure.to_string());
    deep.replay(&undo(true), &failure.replay).unwrap();
}

#[test]
fn recoveries_crash_as_often_as_asked() {
    let toy = || {
        Toy::new(
            |m, _| persist(m, 0, 1),
            |m| {
                let attempts = get(m, 64);
                persist(m, 64, attempts + 1);
                if attempts < 2 { Ok(()) } else { Err("a third recovery".to_owned()) }
            },
            |(), _| Ok(()),
        )
    };
    for depth in 0..2 {
        let explorer = Explorer { nested_depth: depth, ..Explorer::default() };
        explorer.explore(&toy()).unwrap();
    }
    let explorer = Explorer { nested_depth: 2, ..Explorer::default() };
    let failure = explorer.explore(&toy()).unwrap_err();
    assert_eq!(failure.nested.len(), 2, "{failure}");
    assert!(matches!(explorer.replay(&toy(), &failure.replay), Err(ReplayError::Failed(_))));
}

/// Words of a record; the last one is the checksum.
const WORDS: usize = 12;

/// A record that is valid by its checksum alone, streamed. `strong` sums all of it.
fn record(strong: bool, fenced: bool) -> Toy<Option<[u64; WORDS]>> {
    let sum = move |words: &[u64; WORDS]| -> u64 {
        let summed = if strong { &words[..WORDS - 1] } else { &words[..1] };
        summed.iter().fold(1, |sum, word| sum * 31 + word)
    };
    Toy::new(
        move |m, log| {
            let mut words = [5; WORDS];
            words[WORDS - 1] = sum(&words);
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            m.stream(PoolOffset(4096), &bytes);
            if fenced {
                fence(m);
            }
            log.note("recorded");
        },
        move |m| {
            let words = std::array::from_fn(|i| get(m, 4096 + 8 * i as u64));
            Ok((words[WORDS - 1] == sum(&words)).then_some(words))
        },
        |found, crash| match found {
            Some(words) if words[..WORDS - 1] == [5; WORDS - 1] => Ok(()),
            None if !happened(crash, "recorded") => Ok(()),
            other => Err(format!("found {other:?}")),
        },
    )
}

#[test]
fn streams_tear_and_need_a_fence() {
    Explorer::default().explore(&record(true, true)).unwrap();
    let torn = Explorer::default().explore(&record(false, true)).unwrap_err();
    assert!(torn.message.starts_with("found Some"), "{torn}");
    let lost = Explorer::default().explore(&record(true, false)).unwrap_err();
    assert_eq!(lost.message, "found None");
}

/// Which thread stores, flushes and fences a word; `streamed` instead of stored.
fn threads(streamed: bool, flusher: usize, fencer: usize) -> Toy<u64> {
    Toy::new(
        move |m, log| {
            let store = move || match streamed {
                true => m.stream(PoolOffset(0), &1_u64.to_le_bytes()),
                false => put(m, 0, 1),
            };
            let flush = move || flush(m, 0);
            let fence = move || fence(m);
            let steps: [(usize, &(dyn Fn() + Sync)); 3] =
                [(0, &store), (flusher, &flush), (fencer, &fence)];
            // Each step is over before the next begins; other threads live for one step.
            for (thread, step) in steps {
                if thread == 0 {
                    step();
                } else {
                    std::thread::scope(|scope| scope.spawn(step).join().unwrap());
                }
            }
            log.note("done");
        },
        |m| Ok(get(m, 0)),
        |found, crash| match found {
            0 if happened(crash, "done") => Err("lost".to_owned()),
            _ => Ok(()),
        },
    )
}

#[test]
fn fence_counts_for_its_thread_only() {
    let explorer = Explorer::default();
    explorer.explore(&threads(false, 0, 0)).unwrap();
    explorer.explore(&threads(true, 0, 0)).unwrap();
    explorer.explore(&threads(true, 1, 0)).unwrap();
    explorer.explore(&threads(false, 0, 1)).expect_err("a flush waits for its own fence");
    explorer.explore(&threads(true, 0, 1)).expect_err("so does a stream");
    explorer.explore(&threads(false, 1, 2)).expect_err("threads 1 and 2 are not one");
}

#[test]
fn fence_leaves_streams_of_other_threads() {
    let toy = Toy::new(
        |m, log| {
            m.stream(PoolOffset(0), &1_u64.to_le_bytes());
            std::thread::scope(|scope| {
                scope.spawn(|| m.stream(PoolOffset(8), &1_u64.to_le_bytes()));
            });
            fence(m);
            log.note("done");
        },
        |m| Ok((get(m, 0), get(m, 8))),
        |found, crash| match found {
            (0, _) if happened(crash, "done") => Err("ours is lost".to_owned()),
            (1, 0) if happened(crash, "done") => Err("theirs is lost".to_owned()),
            _ => Ok(()),
        },
    );
    let failure = Explorer::default().explore(&toy).unwrap_err();
    assert_eq!(failure.message, "theirs is lost");
}

#[test]
fn another_thread_may_flush_and_fence() {
    let toy = || {
        Toy::new(
            |m, log| {
                put(m, 0, 1);
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        flush(m, 0);
                        fence(m);
                    });
                });
                log.note("done");
            },
            |m| Ok(get(m, 0)),
            |found, crash| {
                if found == 1 || !happened(crash, "done") { Ok(()) } else { Err("lost".into()) }
            },
        )
    };
    Explorer::default().explore(&toy()).unwrap();
}

#[test]
fn flush_covers_earlier_stores_only() {
    let toy = Toy::new(
        |m, log| {
            put(m, 0, 1);
            flush(m, 0);
            put(m, 8, 1);
            fence(m);
            log.note("done");
        },
        |m| Ok((get(m, 0), get(m, 8))),
        |found, crash| match found {
            (1, 1) => Ok(()),
            (1, 0) => Err("the second store was not flushed".to_owned()),
            _ if happened(crash, "done") => Err("the first store was flushed".to_owned()),
            _ => Ok(()),
        },
    );
    let failure = Explorer::default().explore(&toy).unwrap_err();
    assert_eq!(failure.message, "the second store was not flushed");
}
