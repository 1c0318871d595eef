//! The quiesce lock of a volume: clients share the volume, and a change has it guard.
//!
//! Invariants: a client is not let in during a change. A change begins only without clients, unless
//! it allows clients. A client cannot come between the check for clients and the change.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex, MutexGuard};

/// Quiesce lock: it separates a volume's clients from its changes.
#[derive(Default)]
pub(crate) struct QuiesceLock {
    state: Mutex<State>,
    left: Condvar,
}

#[derive(Default)]
struct State {
    clients: u64,
    /// The change under way, as a participle such as "resized"; `None` without a change.
    change: Option<&'static str>,
}

/// Reasons why a volume cannot be used or changed now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Busy {
    /// The number of clients with the volume open.
    Clients(u64),
    /// This is being done to it.
    Change(&'static str),
}

/// The right to use a volume, as long as it lives.
pub(crate) struct Lease(Arc<QuiesceLock>);

/// The right to change a volume, as long as it lives.
pub(crate) struct ExclusiveGuard(Arc<QuiesceLock>);

impl QuiesceLock {
    /// Lets a client in.
    ///
    /// # Errors
    /// The volume is being changed.
    pub(crate) fn begin_op(self: &Arc<Self>) -> Result<Lease, Busy> {
        self.lock_unchanged()?.clients += 1;
        Ok(Lease(Arc::clone(self)))
    }

    /// Shuts clients out to do `what`.
    ///
    /// # Errors
    /// The volume is being changed, or there are clients and the change is not to be made `beside_clients`.
    pub(crate) fn lock_exclusive(
        self: &Arc<Self>,
        what: &'static str,
        beside_clients: bool,
    ) -> Result<ExclusiveGuard, Busy> {
        let mut state = self.lock_unchanged()?;
        if state.clients > 0 && !beside_clients {
            return Err(Busy::Clients(state.clients));
        }
        // Under the lock of the check: no client comes between.
        state.change = Some(what);
        Ok(ExclusiveGuard(Arc::clone(self)))
    }

    /// The state, unless a change is under way.
    fn lock_unchanged(&self) -> Result<MutexGuard<'_, State>, Busy> {
        let state = self.state.lock();
        match state.change {
            Some(what) => Err(Busy::Change(what)),
            None => Ok(state),
        }
    }

    /// Clients with the volume open.
    pub(crate) fn clients(&self) -> u64 {
        self.state.lock().clients
    }
}

impl Lease {
    /// Checks that no change has begun since the client's entry.
    ///
    /// # Errors
    /// The volume is being changed.
    pub(crate) fn check_undisturbed(&self) -> Result<(), Busy> {
        self.0.lock_unchanged().map(drop)
    }
}

impl ExclusiveGuard {
    /// Waits until no client is left, or until `deadline`, and returns how many are.
    pub(crate) fn wait_idle(&self, deadline: Instant) -> u64 {
        let mut state = self.0.state.lock();
        while state.clients > 0 && !self.0.left.wait_until(&mut state, deadline).timed_out() {}
        state.clients
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.0.state.lock().clients -= 1;
        self.0.left.notify_all();
    }
}

impl Drop for ExclusiveGuard {
    fn drop(&mut self) {
        self.0.state.lock().change = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exclusive_lock_excludes_new_clients() {
        let lock = Arc::new(QuiesceLock::default());
        let first = lock.begin_op().ok().unwrap();
        let second = lock.begin_op().ok().unwrap();
        assert_eq!(lock.lock_exclusive("deleted", false).err(), Some(Busy::Clients(2)));
        drop(first);
        assert_eq!(lock.clients(), 1);
        drop(second);
        let guard = lock.lock_exclusive("deleted", false).ok().unwrap();
        assert_eq!(lock.begin_op().err(), Some(Busy::Change("deleted")));
        assert_eq!(lock.lock_exclusive("resized", true).err(), Some(Busy::Change("deleted")));
        drop(guard);
        drop(lock.begin_op().ok().unwrap());
    }

    #[test]
    fn new_client_detects_a_change() {
        let lock = Arc::new(QuiesceLock::default());
        let client = lock.begin_op().ok().unwrap();
        assert_eq!(client.check_undisturbed(), Ok(()));
        let guard = lock.lock_exclusive("detached", true).ok().unwrap();
        assert_eq!(client.check_undisturbed(), Err(Busy::Change("detached")));
        drop(guard);
        assert_eq!(client.check_undisturbed(), Ok(()));
    }

    #[test]
    fn forced_change_waits_for_clients() {
        let lock = Arc::new(QuiesceLock::default());
        let client = lock.begin_op().ok().unwrap();
        let guard = lock.lock_exclusive("detached", true).ok().unwrap();
        assert_eq!(guard.wait_idle(Instant::now()), 1);
        let leaving = std::thread::spawn(move || drop(client));
        assert_eq!(guard.wait_idle(Instant::now() + std::time::Duration::from_secs(60)), 0);
        leaving.join().unwrap();
    }
}
