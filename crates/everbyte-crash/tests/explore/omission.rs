//! Flushes and fences omitted from sound code are caught and reported with the lost stores; nothing
//! else is omitted.

use everbyte_crash::{
    Explorer, Failure, Labels, Mark, Medium, Missing, Omission, OpKind, PoolOffset, ReplayError,
    SimMedium,
};

use crate::protocols::{publish, undo};
use crate::toy::{Toy, fence, flush, get, happened, persist, put};

fn labelled(toy: Toy<Option<u64>>) -> Toy<Option<u64>> {
    toy.label(0..64, "value").label(64..128, "flag")
}

/// Sound code: a written value, and a flag that confirms it.
fn stored() -> Toy<Option<u64>> {
    labelled(publish(usize::MAX))
}

/// The same with a value that is streamed.
fn streamed() -> Toy<Option<u64>> {
    labelled(Toy::new(
        |m, log| {
            m.stream(PoolOffset(0), &42_u64.to_le_bytes());
            fence(m);
            persist(m, 64, 1);
            log.note("published");
        },
        |m| Ok((get(m, 64) == 1).then(|| get(m, 0))),
        |value, crash| match value {
            Some(42) => Ok(()),
            None if !happened(crash, "published") => Ok(()),
            other => Err(format!("found {other:?}")),
        },
    ))
}

/// The failure of `sound`, which passes as it is, with something left out.
fn caught<R>(sound: fn() -> Toy<R>, omission: Omission) -> Box<Failure> {
    let explorer = Explorer::default();
    assert!(explorer.explore(&sound()).unwrap().is_exhaustive());
    let failure = explorer.explore(&sound().omit(omission.clone())).expect_err("an omission");
    let again = explorer.replay(&sound().omit(omission), &failure.replay);
    assert!(matches!(again, Err(ReplayError::Failed(_))), "{again:?}");
    failure
}

/// Returns the failure's explanation of the store to `at`.
fn told(failure: &Failure, at: u64) -> (OpKind, Option<Mark>, Option<Missing>) {
    let to_it = |op: &everbyte_crash::Op| {
        op.at.0 == at && matches!(op.kind, OpKind::Store | OpKind::Stream)
    };
    let traced = failure.trace.iter().find(|traced| to_it(&traced.op)).unwrap();
    (traced.op.kind, traced.mark, traced.missing)
}

#[test]
fn unflushed_or_unfenced_value_is_reported_lost() {
    let omissions = [
        (stored as fn() -> _, Omission::flush("value"), OpKind::Store, Missing::Flush),
        (stored, Omission::fence_after_flush("value"), OpKind::Store, Missing::Fence),
        (streamed, Omission::flush("value"), OpKind::Store, Missing::Flush),
        (streamed, Omission::fence_after_stream("value"), OpKind::Stream, Missing::Fence),
    ];
    for (sound, omission, kind, missing) in omissions {
        let failure = caught(sound, omission.clone());
        assert_eq!(failure.message, "found Some(0)", "{omission:?}: {failure}");
        let expected = (kind, Some(Mark::Lost), Some(missing));
        assert_eq!(told(&failure, 0), expected, "{omission:?}: {failure}");
    }
}

#[test]
fn unflushed_or_unfenced_flag_is_reported_lost() {
    for omission in [Omission::flush("flag"), Omission::fence_after_flush("flag")] {
        let failure = caught(stored, omission);
        assert_eq!(failure.message, "found None", "{failure}");
        assert_eq!(told(&failure, 64).1, Some(Mark::Lost), "{failure}");
    }
}

#[test]
fn unnamed_ranges_are_not_omitted() {
    let omissions = [
        Omission::flush("other"),
        Omission::fence_after_flush("other"),
        // The value is flushed, the flag stored.
        Omission::fence_after_stream("value"),
        Omission::fence_after_stream("flag"),
        Omission::flush("value").in_recovery(),
    ];
    for omission in omissions {
        let summary = Explorer::default().explore(&stored().omit(omission.clone())).unwrap();
        assert_eq!(summary.points, 7, "{omission:?}: every operation is there");
    }
}

/// Recovery puts the old words back, and must flush them before it says that nothing is to be
/// undone.
#[test]
fn recovery_alone_can_be_made_to_forget() {
    fn sound() -> Toy<(u64, u64)> {
        undo(true).label(0..128, "words")
    }
    let omission = Omission::flush("words");
    let failure = caught(sound, omission.clone().in_recovery());
    assert!(!failure.nested.is_empty(), "a recovery has to crash: {failure}");
    let failure = caught(sound, omission.in_workload());
    assert!(failure.nested.is_empty(), "{failure}");
}

#[test]
fn omitted_fence_omits_no_later_fence() {
    let medium = SimMedium::new(4096);
    let labels = Labels::default().with(0..64, "value");
    medium.omit(Omission::fence_after_flush("value"), labels);
    put(&medium, 0, 1);
    flush(&medium, 0);
    fence(&medium);
    assert_eq!((medium.ops(), medium.crash_state().open_lines()), (2, 1));
    fence(&medium);
    assert_eq!((medium.ops(), medium.crash_state().open_lines()), (3, 0));
}

#[test]
fn another_threads_fence_is_its_own() {
    let medium = SimMedium::new(4096);
    let labels = Labels::default().with(0..64, "value");
    medium.omit(Omission::fence_after_stream("value"), labels);
    medium.stream(PoolOffset(0), &[1; 64]);
    std::thread::scope(|scope| {
        scope.spawn(|| persist(&medium, 64, 1));
    });
    assert_eq!(medium.crash_state().open_lines(), 1);
    fence(&medium);
    assert_eq!(medium.crash_state().open_lines(), 1, "this one is left out");
}
