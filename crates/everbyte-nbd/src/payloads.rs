//! Memory for the payloads of large writes: one bound for all connections of a server.
//!
//! Invariants: the bytes of all grants and of the kept buffers stay within the bound. A connection
//! has at most one grant, and it gets all bytes of a payload together, so no grant waits for
//! another one. Payloads of up to 1 MiB have a reserved part of the memory. An export gets at most
//! half of the memory that other exports leave, but always enough for one payload: a device that
//! hangs leaves memory for the other devices.
//!
//! Waiting: grants of an export go out in order of arrival, alternately to clients that have
//! completed a request and to clients that have not. If a client sends its payload slowly while
//! another one waits, the slow client loses its connection.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::protocol::PAYLOAD_MAX;

/// Default bound, in bytes.
const BYTES_MAX: usize = 256 << 20;
/// The largest payload of the part for small ones, in bytes.
const SMALL_MAX: usize = 1 << 20;
/// Part of the memory for small payloads: one of so many.
const SMALL_PART: usize = 8;
/// A buffer larger than this is not kept for later payloads.
const KEPT_MAX: usize = 4 << 20;
/// Kept buffers use at most one of so many parts of the memory.
const KEPT_PART: usize = 8;

/// Time for a payload before its client can count as slow, and before a waiting client can revoke
/// its grant.
const PATIENCE: Duration = Duration::from_millis(250);
/// A client is slow if its payload arrives with fewer bytes per second.
const SLOW_BYTES_PER_S: u64 = 1 << 20;
/// Longest time between two looks of a waiting client at its own connection.
const LOOK: Duration = Duration::from_millis(50);

/// Memory for the payloads of a server, or of several servers together. Clones share it.
#[derive(Clone)]
pub struct PayloadMemory(Arc<Shared>);

struct Shared {
    bytes_max: usize,
    state: Mutex<State>,
    /// Signalled when memory is free again, or a client has ceased to wait.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    next_id: u64,
    grants: HashMap<u64, Grant>,
    /// Waiting requests, by arrival.
    waiting: BTreeMap<u64, Request>,
    /// Buffers for later payloads.
    kept: Vec<Vec<u8>>,
    /// Grants to clients after a wait.
    turns: u64,
}

/// The demand of a connection.
#[derive(Clone)]
pub(crate) struct Request {
    /// Name of its export.
    pub(crate) export: String,
    /// Bytes of the payload, at most [`PAYLOAD_MAX`].
    pub(crate) len: usize,
    /// True if this is the first request of the connection.
    pub(crate) is_newcomer: bool,
}

struct Grant {
    request: Request,
    /// Bytes of the buffer, at least those of the payload.
    capacity: usize,
    progress: Arc<Progress>,
}

/// Arrival of a payload.
pub(crate) struct Progress {
    len: usize,
    since: Instant,
    received: AtomicUsize,
    is_revoked: AtomicBool,
}

impl Progress {
    /// Notes the arrival of this many more bytes.
    pub(crate) fn add(&self, bytes: usize) {
        self.received.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Returns true if the client is too slow, and another one waits for the memory.
    pub(crate) fn is_revoked(&self) -> bool {
        self.is_revoked.load(Ordering::Relaxed)
    }

    fn is_slow(&self) -> bool {
        let held = self.since.elapsed();
        let received = self.received.load(Ordering::Relaxed);
        let due = SLOW_BYTES_PER_S * u64::try_from(held.as_millis()).unwrap_or(u64::MAX) / 1000;
        // A complete payload is with the device, and its time is not the client's fault.
        received < self.len && held >= PATIENCE && (received as u64) < due
    }
}

/// A buffer for one payload. Dropping it returns the memory.
pub(crate) struct Buffer<'a> {
    memory: &'a PayloadMemory,
    id: u64,
    bytes: Vec<u8>,
    pub(crate) progress: Arc<Progress>,
}

impl Buffer<'_> {
    /// The bytes of the payload.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.progress.len]
    }
}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        self.memory.release(self.id, std::mem::take(&mut self.bytes));
    }
}

impl Default for PayloadMemory {
    fn default() -> Self {
        Self::new(BYTES_MAX)
    }
}

impl PayloadMemory {
    /// Bounds the memory to `bytes_max` bytes. The default is 256 MiB, and the least is the memory of
    /// three payloads, 96 MiB.
    #[must_use]
    pub fn new(bytes_max: usize) -> Self {
        // With less, one payload in a device that hangs would block large payloads of other
        // exports.
        let bytes_max = bytes_max.max(3 * PAYLOAD_MAX as usize);
        let shared = Shared { bytes_max, state: Mutex::default(), changed: Condvar::new() };
        Self(Arc::new(shared))
    }

    /// Bytes of all payloads in reception or execution, and of the buffers for later ones.
    #[must_use]
    pub fn used_bytes(&self) -> usize {
        self.0.state.lock().used()
    }

    /// Waits for the memory of a payload until `deadline`, or until `is_over` returns true. `None`
    /// means that no memory became free.
    pub(crate) fn buffer(
        &self,
        request: Request,
        deadline: Option<Instant>,
        is_over: impl Fn() -> bool,
    ) -> Option<Buffer<'_>> {
        let since = Instant::now();
        let mut state = self.0.state.lock();
        let id = state.next_id;
        state.next_id += 1;
        state.waiting.insert(id, request);
        while !self.is_next(&state, id) {
            let is_late = deadline.is_some_and(|deadline| Instant::now() >= deadline);
            // `is_over` makes a system call, and all connections need the lock.
            if is_late || MutexGuard::unlocked(&mut state, &is_over) {
                state.waiting.remove(&id);
                // A later request may have waited behind this one alone.
                self.0.changed.notify_all();
                return None;
            }
            // A revoked client loses its connection, and most waits end earlier by themselves.
            if since.elapsed() >= PATIENCE {
                state.revoke_slow(id);
            }
            // Bounded, because no signal tells that the peer of this connection has gone.
            self.0.changed.wait_for(&mut state, LOOK);
        }
        // An immediate grant took no turn from another client.
        state.turns += u64::from(since.elapsed() >= LOOK);
        Some(self.grant(state, id))
    }

    fn grant(&self, mut state: MutexGuard<'_, State>, id: u64) -> Buffer<'_> {
        let len = state.waiting[&id].len;
        let kept = state.take_kept(len);
        // A kept buffer may be larger than the payload, and the share may lack the difference.
        let kept = kept.filter(|kept| self.fits_bytes(&state, id, kept.capacity(), true));
        let request = state.waiting.remove(&id).expect("only its own thread removes it");
        let progress = Arc::new(Progress {
            len,
            since: Instant::now(),
            received: AtomicUsize::new(0),
            is_revoked: AtomicBool::new(false),
        });
        let mut bytes = kept.unwrap_or_default();
        let capacity = bytes.capacity().max(len);
        // Kept buffers only save work, so they go before a grant would exceed the bound.
        while state.used() + capacity > self.0.bytes_max
            && let Some(kept) = state.kept.pop()
        {
            drop(kept);
        }
        // Counted before the allocation, so the lock is not held during it.
        state.grants.insert(id, Grant { request, capacity, progress: Arc::clone(&progress) });
        // The next one may have memory, too.
        self.0.changed.notify_all();
        drop(state);
        if bytes.len() < len {
            // Fresh zeroes cost nothing until the payload arrives in them.
            bytes = vec![0; len];
        }
        Buffer { memory: self, id, bytes, progress }
    }

    fn release(&self, id: u64, bytes: Vec<u8>) {
        let mut state = self.0.state.lock();
        state.grants.remove(&id);
        let kept: usize = state.kept.iter().map(Vec::capacity).sum();
        // While clients wait, the memory must be free for payloads of any size.
        let is_kept = bytes.capacity() <= KEPT_MAX
            && kept + bytes.capacity() <= self.0.bytes_max / KEPT_PART
            && state.waiting.is_empty();
        if is_kept {
            state.kept.push(bytes);
        }
        self.0.changed.notify_all();
    }

    /// Returns true if the request gets its memory now.
    fn is_next(&self, state: &State, id: u64) -> bool {
        let earlier = state.waiting.range(..id).filter(|(_, other)| {
            let request = &state.waiting[&id];
            is_small(other.len) == is_small(request.len) && other.export != request.export
        });
        self.fits(state, id, true)
            && state.is_first(id)
            // A request that lacks only memory precedes all later ones.
            && earlier.into_iter().all(|(&other, _)| {
                !state.is_first(other) || !self.fits(state, other, false)
            })
    }

    /// Returns true if the share of the export has room for the request, and so has the memory if `all` is set.
    fn fits(&self, state: &State, id: u64, all: bool) -> bool {
        self.fits_bytes(state, id, state.waiting[&id].len, all)
    }

    /// As `fits`, for a buffer of `bytes` bytes.
    fn fits_bytes(&self, state: &State, id: u64, bytes: usize, all: bool) -> bool {
        let request = &state.waiting[&id];
        let is_small = is_small(request.len);
        let (part, unit) = match is_small {
            true => (self.0.bytes_max / SMALL_PART, SMALL_MAX),
            false => {
                let part = self.0.bytes_max - self.0.bytes_max / SMALL_PART;
                (part, PAYLOAD_MAX as usize)
            }
        };
        let (mut own, mut others) = (0, 0);
        for Grant { request: granted, capacity, .. } in state.grants.values() {
            if self::is_small(granted.len) == is_small {
                let share = if granted.export == request.export { &mut own } else { &mut others };
                *share += capacity;
            }
        }
        // At least one payload: otherwise grants of other exports could exclude this export.
        let share = (part.saturating_sub(others) / 2).max(unit);
        own + bytes <= share && (!all || own + others + bytes <= part)
    }
}

fn is_small(len: usize) -> bool {
    len <= SMALL_MAX
}

impl State {
    fn used(&self) -> usize {
        let granted: usize = self.grants.values().map(|grant| grant.capacity).sum();
        granted + self.kept.iter().map(Vec::capacity).sum::<usize>()
    }

    /// Takes the smallest kept buffer with at least `len` bytes.
    fn take_kept(&mut self, len: usize) -> Option<Vec<u8>> {
        let fitting = self.kept.iter().enumerate().filter(|(_, bytes)| {
            // The buffer counts with its capacity, so a far larger one would waste the bound.
            (len..=len + len / 8).contains(&bytes.capacity())
        });
        let (at, _) = fitting.min_by_key(|(_, bytes)| bytes.capacity())?;
        // Truncation would free no memory.
        Some(self.kept.swap_remove(at))
    }

    /// Returns true if the request is the first one of its export and of its size.
    fn is_first(&self, id: u64) -> bool {
        let request = &self.waiting[&id];
        let rivals = self.waiting.iter().filter(|(_, other)| {
            other.export == request.export && is_small(other.len) == is_small(request.len)
        });
        // `false` precedes `true`: newcomers come first in one turn of four, the others in the
        // rest.
        let newcomers_turn = self.turns % 4 == 3;
        let first = rivals.min_by_key(|(id, rival)| (rival.is_newcomer != newcomers_turn, **id));
        first.is_some_and(|(&first, _)| first == id)
    }

    /// Revokes grants of slow clients if the request can use them.
    fn revoke_slow(&mut self, id: u64) {
        let request = &self.waiting[&id];
        for Grant { request: granted, progress, .. } in self.grants.values() {
            if is_small(granted.len) == is_small(request.len) && progress.is_slow() {
                progress.is_revoked.store(true, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: usize = PAYLOAD_MAX as usize;

    fn request(export: &str, len: usize) -> Request {
        Request { export: export.to_owned(), len, is_newcomer: true }
    }

    /// Takes memory if some is free now.
    fn take<'m>(memory: &'m PayloadMemory, export: &str, len: usize) -> Option<Buffer<'m>> {
        memory.buffer(request(export, len), Some(Instant::now()), || false)
    }

    fn take_all<'m>(memory: &'m PayloadMemory, export: &str, len: usize) -> Vec<Buffer<'m>> {
        std::iter::from_fn(|| take(memory, export, len)).collect()
    }

    #[test]
    fn grants_of_all_exports_stay_within_the_bound() {
        let memory = PayloadMemory::default();
        let mut held = Vec::new();
        for export in ["a", "b", "c", "d", "e", "f"] {
            held.extend(take_all(&memory, export, MAX));
            held.extend(take_all(&memory, export, SMALL_MAX));
        }
        assert!(memory.used_bytes() <= BYTES_MAX);
        assert!(memory.used_bytes() > BYTES_MAX / 4 * 3, "{}", memory.used_bytes());
        drop(held);
        assert!(memory.used_bytes() <= BYTES_MAX / KEPT_PART);
        assert!(take(&memory, "f", MAX).is_some());
    }

    #[test]
    fn one_export_leaves_memory_to_others() {
        let memory = PayloadMemory::new(0);
        let hung = take_all(&memory, "hung", MAX);
        assert_eq!(hung.len(), 1);
        assert_eq!(take_all(&memory, "alive", MAX).len(), 1);
        let memory = PayloadMemory::default();
        let hung = take_all(&memory, "hung", MAX);
        assert_eq!(hung.len(), 3);
        assert_eq!(take_all(&memory, "alive", MAX).len(), 2);
        assert!(take(&memory, "hung", SMALL_MAX).is_some(), "small payloads have their own part");
    }

    #[test]
    fn waiting_clients_replace_slow_ones() {
        let memory = PayloadMemory::default();
        let hung = take_all(&memory, "disk", MAX);
        let complete = &hung[0];
        complete.progress.add(MAX);
        let slow: Vec<_> = hung.iter().map(|held| Arc::clone(&held.progress)).collect();
        let slow_ones = Mutex::new(hung);
        // Each slow client's own thread would see the revocation and drop its buffer.
        let revoke = || {
            slow_ones.lock().retain(|held| !held.progress.is_revoked());
            false
        };
        let deadline = Instant::now() + 40 * PATIENCE;
        let got = memory.buffer(request("disk", MAX), Some(deadline), revoke);
        assert!(got.is_some());
        assert!(!slow[0].is_revoked(), "the device has all of it");
        assert!(slow[1].is_revoked() && slow[2].is_revoked());
    }

    #[test]
    fn proven_clients_go_before_newcomers() {
        let memory = PayloadMemory::default();
        let mut state = memory.0.state.lock();
        for (id, is_newcomer) in [(1, true), (2, true), (3, false), (4, false)] {
            let request = Request { is_newcomer, ..request("disk", MAX) };
            state.waiting.insert(id, request);
        }
        let mut order = Vec::new();
        while let Some(first) = state.waiting.keys().copied().find(|id| state.is_first(*id)) {
            state.waiting.remove(&first);
            state.turns += 1;
            order.push(first);
        }
        assert_eq!(order, [3, 4, 1, 2]);
        state.turns = 3;
        state.waiting.insert(5, Request { is_newcomer: false, ..request("disk", MAX) });
        state.waiting.insert(6, request("disk", MAX));
        assert!(state.is_first(6), "every fourth turn is one of a newcomer");
    }

    #[test]
    fn buffers_are_used_again_within_the_bound() {
        let memory = PayloadMemory::default();
        let mut buffer = take(&memory, "disk", 300 << 10).unwrap();
        buffer.bytes()[7] = 9;
        drop(buffer);
        assert_eq!(memory.used_bytes(), 300 << 10);
        assert_eq!(take(&memory, "disk", 300 << 10).unwrap().bytes()[7], 9);
        drop(take_all(&memory, "disk", SMALL_MAX));
        assert!(memory.used_bytes() <= BYTES_MAX / KEPT_PART);
    }

    #[test]
    fn shrinking_payloads_keep_their_bound() {
        let memory = PayloadMemory::default();
        for _ in 0..40 {
            let mut len = KEPT_MAX;
            while len > 64 << 10 {
                let mut buffer = take(&memory, "disk", len).unwrap();
                assert_eq!(buffer.bytes().len(), len);
                assert!(memory.used_bytes() >= buffer.bytes.capacity());
                drop(buffer);
                len -= len / 10;
            }
        }
        let kept: usize = memory.0.state.lock().kept.iter().map(Vec::capacity).sum();
        assert!(kept <= BYTES_MAX / KEPT_PART, "{kept}");
        assert_eq!(memory.used_bytes(), kept);
    }

    #[test]
    fn departed_client_stops_waiting() {
        let memory = PayloadMemory::default();
        let _held = take_all(&memory, "disk", MAX);
        assert!(memory.buffer(request("disk", MAX), None, || true).is_none());
        assert!(memory.0.state.lock().waiting.is_empty());
    }
}
