//! Exact numbers of images in tiny cases, and cases without a fork.

use std::cell::Cell;
use std::rc::Rc;

use everbyte_crash::{Explorer, Plan, SimMedium, Summary};
use everbyte_media::{Medium, PoolOffset};

use crate::toy::{Toy, fence, flush, get, persist, put};

/// Images at the last crash point of `run`, recovery reading the words at `reads`.
fn images(run: impl Fn(&SimMedium) + 'static, reads: &'static [u64]) -> u64 {
    let last = Rc::new(Cell::new(0));
    let counted = Rc::clone(&last);
    let toy = Toy::new(
        move |m, _| run(m),
        |m| {
            reads.iter().for_each(|&at| {
                get(m, at);
            });
            Ok(())
        },
        move |(), crash| {
            counted.set(counted.get() + u64::from(crash.point == crash.points));
            Ok(())
        },
    );
    let summary = Explorer::default().explore(&toy).unwrap();
    assert!(summary.is_exhaustive());
    last.get()
}

#[test]
fn tiny_cases_have_exactly_their_images() {
    let two_lines = |m: &SimMedium| {
        put(m, 0, 1);
        put(m, 64, 1);
    };
    assert_eq!(images(two_lines, &[0, 64]), 4);
    assert_eq!(images(two_lines, &[64]), 2, "a line that is not read does not fork");
    assert_eq!(images(two_lines, &[128]), 1);

    let one_line = |m: &SimMedium| {
        put(m, 0, 1);
        put(m, 8, 1);
    };
    assert_eq!(images(one_line, &[0, 8]), 3);
    assert_eq!(images(one_line, &[8, 0]), 3);
    assert_eq!(images(one_line, &[8]), 2, "contents that a load cannot tell apart do not fork");

    let streamed = |m: &SimMedium| m.stream(PoolOffset(0), &[1; 16]);
    assert_eq!(images(streamed, &[0, 8]), 4);
    let stored = |m: &SimMedium| m.store(PoolOffset(56), &[1; 24]);
    assert_eq!(images(stored, &[56, 64, 72]), 2 * 4);
    let unaligned = |m: &SimMedium| m.store(PoolOffset(6), &[1; 4]);
    assert_eq!(images(unaligned, &[0, 8]), 4);
    let mixed = |m: &SimMedium| {
        put(m, 0, 1);
        m.stream(PoolOffset(8), &[1; 8]);
    };
    assert_eq!(images(mixed, &[0, 8]), 4);
    let unchanged = |m: &SimMedium| put(m, 0, 0);
    assert_eq!(images(unchanged, &[0]), 1, "storing what is there changes nothing");
}

#[test]
fn alike_crash_points_are_not_tried_twice() {
    let toy = Toy::new(
        |m, log| {
            persist(m, 0, 1);
            fence(m);
            log.note("after a fence for nothing");
            fence(m);
        },
        |m| Ok(get(m, 0)),
        |_, _| Ok(()),
    );
    let summary = Explorer::default().explore(&toy).unwrap();
    // Before the store, after it, after the fence, again after the event, and at the end.
    let wanted = Summary { points: 6, points_alike: 1, images: 1 + 2 + 1 + 1 + 1, ..summary };
    assert_eq!(summary, wanted);
}

#[test]
fn nested_crashes_are_counted_exactly() {
    let toy = Toy::new(
        |m, _| put(m, 0, 1),
        |m| {
            // The same stores for any found state: states after them differ only in line 0.
            put(m, 64, 1);
            flush(m, 64);
            fence(m);
            Ok(get(m, 0))
        },
        |_, _| Ok(()),
    );
    let summary = Explorer::default().explore(&toy).unwrap();
    assert!(summary.is_exhaustive());
    assert_eq!(summary.images, 1 + 2);
    // Crash point 0: after the store (two contents of line 64, not read) and after the fence.
    // Crash point 1: after the store, line 0 still undecided (two images); at the end, after
    // the read of line 0, one state for each of its contents.
    assert_eq!(summary.nested_crashes, 2 + 3);
    assert_eq!(summary.nested_images, (1 + 1) + (2 + 1 + 1));
}

#[test]
fn crash_states_boot_by_plan() {
    let medium = SimMedium::new(4096);
    put(&medium, 0, 1);
    put(&medium, 64, 2);
    let state = medium.crash_state();
    assert_eq!(state.open_lines(), 2);
    let found = |plan: Plan| {
        let booted = state.boot(plan);
        (get(&booted, 0), get(&booted, 64))
    };
    assert_eq!(found(Plan::nothing()), (0, 0));
    assert_eq!(found(Plan::everything()), (1, 2));
    assert_eq!(found(Plan::only(PoolOffset(64))), (0, 2));
    assert_eq!(found(Plan::missing(PoolOffset(64))), (1, 0));
    assert_eq!(found(Plan::Script(vec![1])), (1, 0));
    assert_eq!(found(Plan::Seeded(3)), found(Plan::Seeded(3)));
    assert_eq!(get(&medium, 0), 1, "taking a crash state changes nothing");
}
