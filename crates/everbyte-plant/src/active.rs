//! Planted bugs of threads.
//!
//! Invariant: a thread has at most one bug over all crates, so a caught failure belongs to this bug.

use std::any::Any;
use std::cell::RefCell;
use std::marker::PhantomData;

thread_local! {
    static ACTIVE: RefCell<Option<Box<dyn Any>>> = const { RefCell::new(None) };
}

/// A planted bug. A drop removes it, also during a panic.
#[must_use = "the bug is gone when this is dropped"]
#[derive(Debug)]
pub struct Planted {
    /// Keeps it on its thread.
    _thread: PhantomData<*const ()>,
}

/// Plants `bug` for this thread.
///
/// # Panics
/// If the thread already has a bug.
pub fn plant<B: 'static>(bug: B) -> Planted {
    let before = ACTIVE.replace(Some(Box::new(bug)));
    assert!(before.is_none(), "one bug at a time");
    Planted { _thread: PhantomData }
}

/// Returns true if this thread has `bug` planted.
#[must_use]
pub fn planted<B: Copy + PartialEq + 'static>(bug: B) -> bool {
    ACTIVE.with_borrow(|active| {
        active.as_ref().and_then(|active| active.downcast_ref::<B>()) == Some(&bug)
    })
}

impl Drop for Planted {
    fn drop(&mut self) {
        ACTIVE.set(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, PartialEq)]
    enum Bug {
        First,
        Second,
    }

    #[derive(Clone, Copy, PartialEq)]
    enum OtherBug {
        First,
    }

    #[test]
    fn bug_is_planted_while_held() {
        assert!(!planted(Bug::First));
        let bug = plant(Bug::First);
        assert!(planted(Bug::First) && !planted(Bug::Second) && !planted(OtherBug::First));
        drop(bug);
        assert!(!planted(Bug::First));
    }

    #[test]
    fn panic_removes_the_bug() {
        let caught = std::panic::catch_unwind(|| {
            let _bug = plant(Bug::First);
            panic!("caught");
        });
        assert!(caught.is_err() && !planted(Bug::First));
    }

    #[test]
    fn bug_belongs_to_its_thread() {
        let _bug = plant(Bug::First);
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(!planted(Bug::First)));
        });
    }

    #[test]
    #[should_panic(expected = "one bug at a time")]
    fn second_bug_is_refused() {
        let _first = plant(Bug::First);
        let _second = plant(Bug::Second);
    }
}
