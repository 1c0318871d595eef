//! Model checks of the concurrent protocol on trees of order 2, where a handful of slots already
//! makes several words and levels. Two threads are explored without bound, three with up to four
//! preemptions. Each execution ends with the checks of [`settle`].
//!
//! Run by `RUSTFLAGS="--cfg loom" cargo test -p everbyte-slots --release --lib`.

use loom::sync::Arc;
use loom::thread;

use crate::{AlignedTree, WordTree};

/// A tree of order 2, shared.
type Tiny = Arc<WordTree<1>>;

/// A tiny tree with these slots free.
fn tiny(capacity: u64, free: &[u64]) -> Tiny {
    let tree = WordTree::new(capacity);
    for &slot in free {
        tree.free(slot).expect("a new tree has no free slot");
    }
    Arc::new(tree)
}

/// Explores `test` with at most `preemptions` involuntary switches per execution.
fn bounded(preemptions: usize, test: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(test);
}

/// Checks the end state without running threads: exactly `free` are free, every hint leads to them,
/// and `alloc` finds all of them and no others.
fn settle(tree: &Tiny, mut free: Vec<u64>) {
    free.sort_unstable();
    let seen: Vec<u64> = (0..tree.capacity()).filter(|&slot| tree.is_free(slot)).collect();
    assert_eq!(seen, free);
    assert_eq!(tree.wrong_hints().0, 0);
    assert_eq!(tree.free_count(), free.len() as u64);
    let mut drained: Vec<u64> = std::iter::from_fn(|| tree.alloc(0)).collect();
    drained.sort_unstable();
    assert_eq!(drained, free);
}

/// Removes the allocated slots from `all`. Each must occur there once.
fn without(all: &[u64], taken: impl IntoIterator<Item = u64>) -> Vec<u64> {
    let mut rest = all.to_vec();
    for slot in taken {
        let at = rest.iter().position(|&s| s == slot).expect("a slot was handed out twice");
        rest.swap_remove(at);
    }
    rest
}

#[test]
fn two_allocs_never_share_a_slot() {
    loom::model(|| {
        let free = [1, 2];
        let tree = tiny(4, &free);
        let other = thread::spawn({
            let tree = tree.clone();
            move || tree.alloc(0)
        });
        let mine = tree.alloc(0).expect("there are slots for both");
        let theirs = other.join().unwrap().expect("there are slots for both");
        settle(&tree, without(&free, [mine, theirs]));
    });
}

#[test]
fn last_slot_goes_to_one_thread() {
    loom::model(|| {
        let tree = tiny(4, &[3]);
        let other = thread::spawn({
            let tree = tree.clone();
            move || tree.alloc(0)
        });
        let mine = tree.alloc(2);
        let theirs = other.join().unwrap();
        assert_eq!(mine.xor(theirs), Some(3));
        settle(&tree, vec![]);
    });
}

/// The race behind the second read of `lower`: one thread empties the word (and with it every level
/// above) while another frees a slot of it.
#[test]
fn free_into_emptied_word_loses_no_slot() {
    loom::model(|| {
        let tree = tiny(4, &[0]);
        let other = thread::spawn({
            let tree = tree.clone();
            move || tree.free(1)
        });
        let mine = tree.alloc(0);
        other.join().unwrap().expect("slot 1 was used");
        let mine = mine.expect("slot 0 was free before the call, or slot 1 after it went");
        settle(&tree, without(&[0, 1], [mine]));
    });
}

/// The same, one level up: the neighbouring word becomes nonempty while both levels are lowered.
#[test]
fn free_next_to_emptied_word_loses_no_slot() {
    loom::model(|| {
        let tree = tiny(8, &[0]);
        let other = thread::spawn({
            let tree = tree.clone();
            move || tree.free(2)
        });
        tree.take(0).expect("slot 0 was free");
        other.join().unwrap().expect("slot 2 was used");
        settle(&tree, vec![2]);
    });
}

/// An untouched slot must be found during any changes around it.
#[test]
fn slot_free_throughout_is_found() {
    loom::model(|| {
        let tree = tiny(4, &[0, 1]);
        let other = thread::spawn({
            let tree = tree.clone();
            move || {
                let slot = tree.alloc(0).expect("two slots, two threads");
                tree.free(slot).expect("the slot is this thread's");
            }
        });
        let mine = tree.alloc(1).expect("the other thread holds one slot at most");
        other.join().unwrap();
        settle(&tree, without(&[0, 1], [mine]));
    });
}

/// The counter must not lag: it would report an empty tree.
#[test]
fn freed_slot_is_counted_before_visible() {
    loom::model(|| {
        let tree = tiny(4, &[]);
        let other = thread::spawn({
            let tree = tree.clone();
            move || tree.free(1).expect("slot 1 was used")
        });
        let mine = tree.alloc(0);
        assert!(tree.free_count() <= 1);
        other.join().unwrap();
        settle(&tree, without(&[1], mine));
    });
}

/// While another thread lowers hints, a slot freed in time is hidden for a moment from a thread
/// with a hint in another word, but the thread still finds it.
#[test]
fn slot_hidden_from_hints_is_found() {
    loom::model(|| {
        let tree = tiny(4, &[0]);
        let other = thread::spawn({
            let tree = tree.clone();
            move || tree.take(0)
        });
        tree.free(1).expect("slot 1 was used");
        let mine = tree.alloc(2).expect("slot 1 is free");
        let theirs = other.join().unwrap().ok().map(|()| 0);
        settle(&tree, without(&[0, 1], theirs.into_iter().chain([mine])));
    });
}

#[test]
fn three_threads_exchange_slots() {
    bounded(4, || {
        let tree = tiny(4, &[0]);
        let freer = thread::spawn({
            let tree = tree.clone();
            move || tree.free(1).expect("slot 1 was used")
        });
        let taker = thread::spawn({
            let tree = tree.clone();
            move || tree.alloc(0)
        });
        let mine = tree.alloc(3);
        freer.join().unwrap();
        let theirs = taker.join().unwrap();
        assert!(mine.is_some() || theirs.is_some(), "slot 0 was free until one of them took it");
        settle(&tree, without(&[0, 1], mine.into_iter().chain(theirs)));
    });
}

#[test]
fn batch_and_alloc_share_slots() {
    loom::model(|| {
        let free = [0, 1, 2];
        let tree = tiny(4, &free);
        let other = thread::spawn({
            let tree = tree.clone();
            move || {
                let mut out = Vec::new();
                tree.alloc_batch(0, 3, &mut out);
                out
            }
        });
        let mine = tree.alloc(1);
        let theirs = other.join().unwrap();
        assert!(!theirs.is_empty(), "a single slot went elsewhere");
        settle(&tree, without(&free, mine.into_iter().chain(theirs)));
    });
}

/// A run over two words against one over the second word: the longer one may lose after it took the
/// first word, and frees that word.
#[test]
fn take_run_is_atomic() {
    let won = std::sync::Arc::new([0, 0].map(std::sync::atomic::AtomicUsize::new));
    let count = won.clone();
    loom::model(move || {
        let free = [0, 1, 2, 3];
        let tree = tiny(4, &free);
        let other = thread::spawn({
            let tree = tree.clone();
            move || tree.take_run(2, 2).is_ok()
        });
        let mine = tree.take_run(0, 4).is_ok();
        let theirs = other.join().unwrap();
        assert!(mine ^ theirs, "the first to take slot 2 wins");
        count[usize::from(theirs)].fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        settle(&tree, if mine { vec![] } else { vec![0, 1] });
    });
    for wins in won.iter() {
        assert_ne!(wins.load(std::sync::atomic::Ordering::Relaxed), 0, "an outcome was not tried");
    }
}

#[test]
fn alloc_run_against_alloc_is_partition() {
    loom::model(|| {
        let free = [0, 1, 2, 3];
        let tree = tiny(4, &free);
        let other = thread::spawn({
            let tree = tree.clone();
            move || tree.alloc(2)
        });
        let run = tree.alloc_run(3, 0);
        let theirs = other.join().unwrap();
        let mine = run.into_iter().flat_map(|start| start..start + 3);
        settle(&tree, without(&free, mine.chain(theirs)));
    });
}

#[test]
fn double_free_or_take_is_error() {
    loom::model(|| {
        let tree = tiny(2, &[0]);
        let other = thread::spawn({
            let tree = tree.clone();
            move || (tree.free(1).is_ok(), tree.take(0).is_ok())
        });
        let (freed, took) = (tree.free(1).is_ok(), tree.take(0).is_ok());
        let (others_freed, others_took) = other.join().unwrap();
        assert!(freed ^ others_freed);
        assert!(took ^ others_took);
        settle(&tree, vec![1]);
    });
}

/// Regions of two nodes of two slots.
type TinyRegions = Arc<AlignedTree<1, 2>>;

#[test]
fn all_free_region_is_never_hidden() {
    bounded(3, || {
        let tree: TinyRegions = Arc::new(AlignedTree::new(8));
        for slot in [0, 1, 2, 4, 5, 6, 7] {
            tree.free(slot).expect("a new tree has no free slot");
        }
        let freed = thread::spawn({
            let tree = tree.clone();
            move || tree.free(3).expect("it is used")
        });
        let taken = tree.alloc(0);
        let run = tree.alloc_aligned(4, 0);
        freed.join().expect("no panic");
        if let Some(slot) = taken {
            tree.free(slot).expect("it was taken");
        }
        if let Some(start) = run {
            tree.free_run(start, 4).expect("it was taken");
        }
        assert_eq!((tree.slots().free_count(), tree.hidden_regions()), (8, 0));
        let runs: Vec<u64> = std::iter::from_fn(|| tree.alloc_aligned(4, 0)).collect();
        assert_eq!(runs.len(), 2);
    });
}
