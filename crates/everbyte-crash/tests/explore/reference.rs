//! The images of random little workloads against a second model that works step by step.
//!
//! Hardware moves in this model: between two operations any line may write back its next ordinary
//! store, any streamed word may drain, and a fence waits as required. Every resulting memory is a
//! possible image. The explorer's images must be the same, no more and no fewer.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use everbyte_crash::{Explorer, SimMedium, StoreOrder};
use everbyte_media::{Medium, PoolOffset};

use crate::toy::{Toy, fence, flush, get, persist, put};

/// Words in play: two in each of two lines.
const WORDS: [u64; 4] = [0, 8, 64, 72];
type Image = [u64; 4];

#[derive(Clone, Copy, Debug)]
enum Step {
    Store(usize, u64),
    /// One store to both words of a line.
    Copy(usize, u64),
    Stream(usize, u64),
    Flush(usize),
    Fence,
}

fn line_of(word: usize) -> usize {
    word / 2
}

/// Memory, and the last persisted store in each word; then the persisted stores.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Machine {
    memory: Image,
    newest: [usize; 4],
    persisted: BTreeSet<usize>,
}

/// A word on its way to memory. An ordered one waits for those of its line with a lower rank.
#[derive(Clone, Copy)]
struct Moving {
    op: usize,
    rank: usize,
    word: usize,
    value: u64,
    ordered: bool,
}

fn moving(steps: &[Step], stores: StoreOrder) -> Vec<Moving> {
    let mut all = Vec::new();
    for (op, step) in steps.iter().enumerate() {
        let rank = 2 * op;
        match *step {
            Step::Store(word, value) => all.push(Moving { op, rank, word, value, ordered: true }),
            Step::Stream(word, value) => {
                all.push(Moving { op, rank, word, value, ordered: false });
            }
            Step::Copy(line, value) => {
                let first = Moving { op, rank, word: 2 * line, value, ordered: true };
                let rank = rank + usize::from(stores == StoreOrder::Ascending);
                all.extend([first, Moving { rank, word: 2 * line + 1, ..first }]);
            }
            Step::Flush(_) | Step::Fence => {}
        }
    }
    all
}

/// Every machine that `from` can become while no operation is made.
fn settle(from: BTreeSet<Machine>, all: &[Moving]) -> BTreeSet<Machine> {
    let mut reached = from.clone();
    let mut fresh: Vec<Machine> = from.into_iter().collect();
    while let Some(machine) = fresh.pop() {
        for (i, piece) in all.iter().enumerate() {
            let waits = all[..i].iter().enumerate().any(|(j, earlier)| {
                earlier.ordered
                    && earlier.rank < piece.rank
                    && line_of(earlier.word) == line_of(piece.word)
                    && !machine.persisted.contains(&j)
            });
            if machine.persisted.contains(&i) || piece.ordered && waits {
                continue;
            }
            let mut next = machine.clone();
            next.persisted.insert(i);
            if next.newest[piece.word] <= i {
                next.newest[piece.word] = i;
                next.memory[piece.word] = piece.value;
            }
            if reached.insert(next.clone()) {
                fresh.push(next);
            }
        }
    }
    reached
}

/// Returns true if a fence as operation `at` may complete on `machine`, of which `all` moves by
/// then.
fn may_fence(machine: &Machine, all: &[Moving], steps: &[Step], at: usize) -> bool {
    all.iter().enumerate().all(|(i, piece)| {
        let flushed = |step: &Step| match step {
            Step::Flush(word) => line_of(*word) == line_of(piece.word),
            _ => false,
        };
        let awaited = !piece.ordered || steps[piece.op..at].iter().any(flushed);
        !awaited || machine.persisted.contains(&i)
    })
}

/// Images per crash point of `steps`, from media that hold one of `from`.
fn reference(from: &BTreeSet<Image>, steps: &[Step], stores: StoreOrder) -> Vec<BTreeSet<Image>> {
    let all = moving(steps, stores);
    let start = |&memory| Machine { memory, newest: [0; 4], persisted: BTreeSet::new() };
    let mut machines: BTreeSet<Machine> = from.iter().map(start).collect();
    let mut images = Vec::new();
    for point in 0..=steps.len() {
        let made = all.iter().take_while(|piece| piece.op < point).count();
        machines = settle(machines, &all[..made]);
        images.push(machines.iter().map(|machine| machine.memory).collect());
        if let Some(Step::Fence) = steps.get(point) {
            machines.retain(|machine| may_fence(machine, &all[..made], steps, point));
        }
    }
    images
}

type Images = BTreeMap<u64, BTreeSet<Image>>;

fn make(m: &SimMedium, steps: &[Step]) {
    for step in steps {
        match *step {
            Step::Store(word, value) => put(m, WORDS[word], value),
            Step::Copy(line, value) => {
                m.store(PoolOffset(WORDS[2 * line]), &[value.to_le_bytes(); 2].concat());
            }
            Step::Stream(word, value) => m.stream(PoolOffset(WORDS[word]), &value.to_le_bytes()),
            Step::Flush(word) => flush(m, WORDS[word]),
            Step::Fence => fence(m),
        }
    }
}

fn read(m: &SimMedium, order: [usize; 4]) -> Image {
    let mut image = [0; 4];
    order.iter().for_each(|&word| image[word] = get(m, WORDS[word]));
    image
}

/// Images per crash point that `recover` returned, and how often it ran.
fn explored(
    steps: &[Step],
    nested_depth: u32,
    stores: StoreOrder,
    recover: impl Fn(&SimMedium) -> Option<Image> + 'static,
) -> (Images, u64) {
    let seen: Rc<RefCell<Images>> = Rc::default();
    let (steps, found) = (steps.to_vec(), Rc::clone(&seen));
    let toy = Toy::new(
        move |m, _| make(m, &steps),
        move |m| Ok(recover(m)),
        move |image, crash| {
            found.borrow_mut().entry(crash.point).or_default().extend(image);
            Ok(())
        },
    );
    let explorer = Explorer {
        nested_depth,
        stores,
        runs_max: usize::MAX,
        nested_images_max: usize::MAX,
        nested_points_max: usize::MAX,
        nested_runs_max: usize::MAX,
        ..Explorer::default()
    };
    let summary = explorer.explore(&toy).unwrap();
    assert!(summary.is_exhaustive());
    drop(toy);
    (Rc::try_unwrap(seen).unwrap().into_inner(), summary.images)
}

/// A repeatable workload of up to nine steps, with at most three streams.
fn workload(random: &mut impl FnMut(u64) -> usize) -> Vec<Step> {
    let mut streams = 0;
    (0..4 + random(6) as u64)
        .map(|i| match random(9) {
            0..3 => Step::Store(random(4), i + 1),
            3..5 if streams < 3 => {
                streams += 1;
                Step::Stream(random(4), i + 1)
            }
            5 => Step::Fence,
            6 => Step::Copy(random(2), i + 1),
            _ => Step::Flush(random(4)),
        })
        .collect()
}

/// The same random numbers every time.
fn random_numbers() -> impl FnMut(u64) -> usize {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    move |below| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from((state >> 11) % below).unwrap()
    }
}

#[test]
fn images_are_those_of_a_machine_that_moves() {
    let mut random = random_numbers();
    for case in 0..300 {
        let steps = workload(&mut random);
        let stores = [StoreOrder::Any, StoreOrder::Ascending][case % 2];
        let wanted = reference(&BTreeSet::from([[0; 4]]), &steps, stores);
        for order in [[0, 1, 2, 3], [3, 1, 2, 0]] {
            let (found, runs) = explored(&steps, 0, stores, move |m| Some(read(m, order)));
            let mut last = &BTreeSet::new();
            let mut distinct = 0;
            for (point, wanted) in wanted.iter().enumerate() {
                // Points like the one before were not tried again.
                if let Some(images) = found.get(&(point as u64)) {
                    last = images;
                    distinct += images.len() as u64;
                }
                assert_eq!(last, wanted, "case {case}, point {point} of {steps:?}");
            }
            assert_eq!(runs, distinct, "no image was run twice");
        }
    }
}

/// A word that a first recovery makes durable before anything else.
const BEGUN: u64 = 4096;

#[test]
fn so_are_the_images_that_crashed_recoveries_leave() {
    let mut random = random_numbers();
    for case in 0..150 {
        let (steps, second) = (workload(&mut random), workload(&mut random));
        let stores = [StoreOrder::Any, StoreOrder::Ascending][case % 2];
        let peek = random(8);
        let again = second.clone();
        let (found, _) = explored(&steps, 1, stores, move |m| {
            if get(m, BEGUN) == 1 {
                return Some(read(m, [0, 1, 2, 3]));
            }
            persist(m, BEGUN, 1);
            let middle = again.len() / 2;
            make(m, &again[..middle]);
            if let Some(&at) = WORDS.get(peek) {
                get(m, at);
            }
            make(m, &again[middle..]);
            None
        });
        for (point, first) in
            reference(&BTreeSet::from([[0; 4]]), &steps, stores).iter().enumerate()
        {
            let wanted = reference(first, &second, stores).into_iter().flatten().collect();
            if let Some(images) = found.get(&(point as u64)) {
                assert_eq!(images, &wanted, "case {case}, point {point}: {steps:?}, {second:?}");
            }
        }
    }
}
