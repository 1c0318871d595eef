//! A shelf against a plain map: random batches, partly rolled back, some abandoned, in epochs that are
//! sealed, flushed, grouped, crashed and opened again.

use std::sync::Arc;
use std::thread;

use everbyte_crash::{Plan, SimMedium};
use everbyte_media::BLOCK_U64;
use everbyte_pool::{Batch, PlanConstraints};
use proptest::prelude::*;

use crate::runs::sound;
use crate::shelf::{Contents, Shelf, ShelfError, open_pool};

const BLOCKS: u64 = 64;
/// Used places: few, so that things collide, in different lines of words.
const PLACES_USED: u64 = 24;
const SIZES: [u64; 7] = [64, 128, 256, 512, 1024, 2048, RUN];
const RUN: u64 = 1 << 14;

/// A change of one or two places.
#[derive(Clone, Debug)]
enum Op {
    Put(u64, u64, u8),
    Remove(u64),
    Swap(u64, u64),
}

/// A batch: the plan, the plan to roll back, and the plan after that.
#[derive(Clone, Debug)]
struct Planned {
    first: Vec<Op>,
    taken_back: Vec<Op>,
    last: Vec<Op>,
    is_given_up: bool,
}

#[derive(Clone, Debug)]
enum Step {
    Change(Planned),
    /// On another lane.
    ChangeElsewhere(Planned),
    Touch(u64, u8),
    Flush,
    /// A batch between the seal of an epoch and its end.
    Around(Planned),
    /// Runs put as a group. The group is committed, rolled back or dropped.
    Group(Vec<(u64, u8)>, Option<bool>),
    /// Power fails, and leaves this of the volatile contents.
    PowerCut(u64),
    /// The process ends, and all it stored is left.
    Kill,
    Close,
}

fn any_op() -> impl Strategy<Value = Op> {
    let place = 0..PLACES_USED;
    let bytes = prop::sample::select(&SIZES[..]);
    prop_oneof![
        4 => (place.clone(), bytes, any::<u8>()).prop_map(|(at, bytes, value)| Op::Put(at, bytes, value)),
        2 => place.clone().prop_map(Op::Remove),
        1 => (place.clone(), place).prop_map(|(a, b)| Op::Swap(a, b)),
    ]
}

fn any_batch() -> impl Strategy<Value = Planned> {
    let ops = |most| prop::collection::vec(any_op(), 0..most);
    (ops(4), ops(4), ops(3), prop::bool::weighted(0.15)).prop_map(
        |(first, taken_back, last, is_given_up)| Planned { first, taken_back, last, is_given_up },
    )
}

fn any_step() -> impl Strategy<Value = Step> {
    let place = 0..PLACES_USED;
    let runs = prop::collection::vec((place.clone(), any::<u8>()), 1..4);
    prop_oneof![
        8 => any_batch().prop_map(Step::Change),
        2 => any_batch().prop_map(Step::ChangeElsewhere),
        3 => (place, any::<u8>()).prop_map(|(at, value)| Step::Touch(at, value)),
        2 => Just(Step::Flush),
        2 => any_batch().prop_map(Step::Around),
        2 => (runs, any::<Option<bool>>()).prop_map(|(runs, end)| Step::Group(runs, end)),
        2 => any::<u64>().prop_map(Step::PowerCut),
        1 => Just(Step::Kill),
        1 => Just(Step::Close),
    ]
}

fn apply(contents: &mut Contents, ops: &[Op]) {
    for op in ops {
        match *op {
            Op::Put(place, bytes, value) => _ = contents.insert(place, (bytes, value, value)),
            Op::Remove(place) => _ = contents.remove(&place),
            Op::Swap(a, b) => {
                let (of_a, of_b) = (contents.remove(&a), contents.remove(&b));
                let swapped = if a == b { [(a, of_a), (b, of_b)] } else { [(b, of_a), (a, of_b)] };
                contents
                    .extend(swapped.into_iter().filter_map(|(place, thing)| Some((place, thing?))));
            }
        }
    }
}

fn plan<'v>(
    shelf: &'v Shelf<SimMedium>,
    batch: &mut Batch<'v, '_, SimMedium>,
    ops: &[Op],
) -> Result<(), ShelfError> {
    for op in ops {
        match *op {
            Op::Put(place, bytes, value) => shelf.plan_put(batch, place, bytes, value)?,
            Op::Remove(place) => shelf.plan_remove(batch, place),
            Op::Swap(a, b) => {
                let (of_a, of_b) = (shelf.word_at(a), shelf.word_at(b));
                let words = (batch.word(of_a), batch.word(of_b));
                batch.change_word(of_a, words.1);
                batch.change_word(of_b, words.0);
            }
        }
    }
    Ok(())
}

impl Planned {
    /// Plans it; a rolled back step leaves no new word.
    fn plan<'v>(
        &self,
        shelf: &'v Shelf<SimMedium>,
        batch: &mut Batch<'v, '_, SimMedium>,
    ) -> Result<(), ShelfError> {
        let words = |batch: &Batch<'_, '_, SimMedium>| -> Vec<u64> {
            (0..PLACES_USED).map(|place| batch.word(shelf.word_at(place))).collect()
        };
        plan(shelf, batch, &self.first)?;
        let (savepoint, seen) = (batch.savepoint(), words(batch));
        let _may_find_no_space = plan(shelf, batch, &self.taken_back);
        batch.roll_back(savepoint);
        assert_eq!(words(batch), seen);
        plan(shelf, batch, &self.last)?;
        if self.is_given_up { Err(ShelfError::TooLarge) } else { Ok(()) }
    }

    fn apply(&self, contents: &mut Contents) {
        apply(contents, &self.first);
        apply(contents, &self.last);
    }
}

/// A shelf and its expected contents: now, and after a crash.
struct Run {
    shelf: Shelf<SimMedium>,
    now: Contents,
    durable: Contents,
    completed: u64,
}

impl Run {
    fn new() -> Self {
        let shelf = Shelf::make(&Arc::new(SimMedium::new(BLOCKS * BLOCK_U64)), 2);
        let (now, completed) = (Contents::new(), shelf.volume().completed_epoch());
        Self { shelf, durable: now.clone(), now, completed }
    }

    /// Notes that the contents before a change are durable if it made a checkpoint for want of room.
    fn note_checkpoint(&mut self, before: &Contents) {
        let completed = self.shelf.volume().completed_epoch();
        if completed != self.completed {
            (self.durable, self.completed) = (before.clone(), completed);
        }
    }

    fn changed(&mut self, planned: &Planned, result: Result<(), ShelfError>) {
        self.note_checkpoint(&self.now.clone());
        match result {
            Ok(()) => planned.apply(&mut self.now),
            Err(ShelfError::TooLarge) => assert!(planned.is_given_up, "the log has room for it"),
            Err(ShelfError::NoSpace) => {}
            Err(ShelfError::Write(error)) => panic!("{error}"),
        }
    }

    fn reopen(&mut self, medium: SimMedium) {
        self.now = self.durable.clone();
        self.shelf = Shelf::open(open_pool(&Arc::new(medium)).unwrap());
        self.completed = self.shelf.volume().completed_epoch();
    }

    fn step(&mut self, step: &Step) {
        let shelf = &self.shelf;
        match step {
            Step::Change(planned) => {
                let result = shelf.change(|batch| planned.plan(shelf, batch));
                self.changed(planned, result);
            }
            Step::ChangeElsewhere(planned) => {
                let result = thread::scope(|scope| {
                    scope.spawn(|| shelf.change(|batch| planned.plan(shelf, batch))).join().unwrap()
                });
                self.changed(planned, result);
            }
            Step::Touch(place, value) => {
                if shelf.thing(*place).is_none() {
                    return;
                }
                shelf.touch(*place, *value).unwrap();
                self.note_checkpoint(&self.now.clone());
                let thing = self.now.get_mut(place).unwrap();
                thing.1 = *value;
                thing.2 = if thing.0 == 64 { *value } else { thing.2 };
            }
            Step::Flush => {
                shelf.volume().flush().unwrap();
                self.note_checkpoint(&self.now.clone());
                assert_eq!(self.durable, self.now);
            }
            Step::Around(planned) => self.around(planned),
            Step::Group(runs, end) => self.group(runs, *end),
            Step::PowerCut(seed) => {
                let medium = shelf.pool.medium().crash_state().boot(Plan::Seeded(*seed));
                self.reopen(medium);
            }
            Step::Kill => {
                let image = shelf.pool.medium().image();
                self.reopen(SimMedium::from_image(image));
            }
            Step::Close => {
                shelf.pool.close().unwrap();
                self.durable = self.now.clone();
                let left = shelf.pool.medium().crash_state().boot(Plan::nothing());
                self.reopen(left);
                assert!(self.shelf.pool.recovery().was_clean);
            }
        }
    }

    fn around(&mut self, planned: &Planned) {
        let volume = self.shelf.volume();
        let guard = volume.lock_checkpoint();
        let sealed = volume.begin_checkpoint(&guard).unwrap();
        let sealed_contents = self.now.clone();
        // No checkpoint can make room now, so one attempt is all.
        let result: Result<_, ShelfError> =
            volume.attempt(PlanConstraints::default(), |batch, _| planned.plan(&self.shelf, batch));
        if result.is_ok() {
            planned.apply(&mut self.now);
        }
        assert_eq!(self.shelf.contents().unwrap(), self.now);
        sealed.finish().unwrap();
        drop(guard);
        self.note_checkpoint(&sealed_contents);
        assert_eq!(self.durable, sealed_contents);
    }

    fn group(&mut self, runs: &[(u64, u8)], end: Option<bool>) {
        let group = self.shelf.volume().begin_group().unwrap();
        self.durable = self.now.clone();
        let before = self.now.clone();
        for &(place, value) in runs {
            let put: Result<_, ShelfError> =
                self.shelf.volume().attempt(PlanConstraints::default(), |batch, _| {
                    self.shelf.plan_put(batch, place, RUN, value)
                });
            if put.is_ok() {
                apply(&mut self.now, &[Op::Put(place, RUN, value)]);
            }
        }
        match end {
            Some(true) => {
                group.commit().unwrap();
                self.durable = self.now.clone();
            }
            Some(false) => {
                group.roll_back().unwrap();
                self.now = before;
            }
            None => drop(group),
        }
        self.completed = self.shelf.volume().completed_epoch();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, max_shrink_iters: 4000, ..ProptestConfig::default() })]

    #[test]
    fn shelf_matches_model_after_crash(
        steps in prop::collection::vec(any_step(), 1..30),
    ) {
        let mut run = Run::new();
        for step in &steps {
            run.step(step);
            prop_assert_eq!(run.shelf.contents(), Ok(run.now.clone()), "after {:?}", step);
        }
        let live = &run.shelf;
        prop_assert_eq!(sound(live), Ok(()));
        let remarks = live.pool.check().unwrap().remarks;
        prop_assert_eq!(remarks, Vec::<String>::new(), "blocks are counted as they are used");
        // The check has made everything durable; a recount from the words gives the same.
        let killed = Arc::new(SimMedium::from_image(live.pool.medium().image()));
        let again = Shelf::open(open_pool(&killed).unwrap());
        let words = |shelf: &Shelf<SimMedium>| -> Vec<u64> { shelf.pool.allocator().words().collect() };
        prop_assert_eq!(words(&again), words(live));
        let used = |shelf: &Shelf<SimMedium>| shelf.pool.volume_info(shelf.volume()).used_bytes;
        prop_assert_eq!(used(&again), used(live));
        prop_assert_eq!(again.contents(), Ok(run.now.clone()));
    }
}
