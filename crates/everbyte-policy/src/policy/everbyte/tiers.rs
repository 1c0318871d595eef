//! The rules 1 to 9 of `everbyte`.
//!
//! Invariants: a page of the cache is either in the list or waits, and a waiting page is dirty. The
//! queue has exactly the pages of DRAM. The hand is on a page of the list, or nowhere, which means
//! the list's end.

use super::super::action::{Action, Actions, Reason, Tier};
use super::super::directory::{Capacity, Directory, State};
use super::super::sequence::Sequence;
use super::super::storage::{PageSet, PlacedStorage, Record, Storage, Table};
use super::worth::{Class, Worth};
use crate::access::{Access, Op, PAGE_BYTES, PageNo};
use crate::costs::Costs;

/// Most turns of the queue that writes keep a page in DRAM.
const KEEP_MAX: u8 = 7;
/// In SCM, above the count of halves: it was not used since it was demoted, and its class.
const ON_TRIAL: u8 = 1 << 3;
const CLASS_SHIFT: u32 = 4;
/// In SCM: it came straight there, and was not written to since.
const STRAIGHT: u8 = 1 << 6;
/// Halves of a page, written to a page of SCM, at which it is promoted; at most [`KEEP_MAX`].
const HALVES_MAX: u8 = 7;
/// The SIEVE's bit.
const USED: State = State::REFERENCED;
/// Hit in DRAM since it came there.
const HIT_IN_DRAM: State = State::MARK_A;
const WAITING: State = State::MARK_B;
const DIRTY_OR_HIT: State = State(State::DIRTY.0 | HIT_IN_DRAM.0);

/// The order of the list: rules 2 and 8.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// SIEVE.
    Sieve,
    /// Least recently used.
    Lru,
}

/// The rules that can be changed or left out.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Rules {
    /// Writes of at most this many bytes are small.
    pub small_write_bytes: u16,
    /// Rules 2 and 8.
    pub order: Order,
    /// Frames that wait before one is written, in thousandths of all: rule 7.
    pub waiting_permille: u32,
    /// Written pages may come straight to SCM: rule 3.
    pub straight: bool,
    /// All pages do, once DRAM is full: rule 3.
    pub rests: bool,
    /// A missed page is the next one to leave DRAM: rule 4.
    pub new_leave_first: bool,
    /// Large writes keep pages in DRAM for more than a turn: rule 4.
    pub keeps: bool,
    /// Pages are demoted where that pays, else all: rule 5.
    pub weighs: bool,
    /// Pages without a hit are dropped: rule 6.
    pub drops: bool,
    /// Pages are promoted for large writes: rule 9.
    pub promotes: bool,
}

impl Rules {
    /// All of them, in the order of SIEVE.
    pub const ALL: Self = Self {
        small_write_bytes: 512,
        order: Order::Sieve,
        waiting_permille: 100,
        straight: true,
        rests: false,
        new_leave_first: false,
        keeps: true,
        weighs: true,
        drops: true,
        promotes: true,
    };

    /// Rule 4: returns the new number of turns of a page of DRAM; `before` is the old one.
    #[inline]
    fn keep(&self, access: Access, before: u8) -> u8 {
        match access.op {
            // SCM serves a small write cheaply, so it is no reason to stay in DRAM.
            Op::Write if !is_large_write(access, self.small_write_bytes) => before,
            Op::Write if self.keeps => (before + 1).min(KEEP_MAX),
            _ => before.max(1),
        }
    }

    /// Rule 9: returns the new note of a page of SCM; `before` is the old one.
    #[inline]
    fn use_in_scm(&self, access: Access, before: u8, worth: &mut Worth<impl Storage>) -> u8 {
        // Only the first use counts: the class asks whether a demoted page is used at all.
        if before & ON_TRIAL != 0 {
            worth.returned(Class(before >> CLASS_SHIFT & 3));
        }
        let mut note = before & !ON_TRIAL;
        if access.op == Op::Write && note & STRAIGHT != 0 {
            worth.rewritten();
            note &= !STRAIGHT;
        }
        let promotes = self.promotes && is_large_write(access, self.small_write_bytes);
        // A write of the whole page is two halves, any other large write one: the count has three
        // bits.
        let halves = 1 + u8::from(u32::from(access.len) == PAGE_BYTES);
        let written = (note & KEEP_MAX) + u8::from(promotes) * halves;
        // Saturates at the threshold, which fills the three bits of the count.
        note & !KEEP_MAX | written.min(HALVES_MAX)
    }
}

/// Returns true for an access that keeps a page in DRAM for more than a turn, and promotes one of
/// SCM: rules 4 and 9.
#[inline]
pub(super) fn is_large_write(access: Access, small_write_bytes: u16) -> bool {
    access.op == Op::Write && access.len > small_write_bytes
}

/// Both tiers of a cache under [`Rules`].
pub(super) struct Tiers<S: Storage> {
    /// The note of a page of DRAM: its remaining turns of the queue. The note of a page of SCM:
    /// halves written since its arrival, and the mark of an unused page.
    pub(super) pages: Directory<PlacedStorage<S>>,
    pub(super) rules: Rules,
    /// Rule 1: the list, without those that wait.
    list: Sequence,
    /// Place of the page that the SIEVE looks at next; the list's end if there is none.
    hand: Option<u32>,
    pub(super) waiting: S::Set,
    waiting_pages: u32,
    /// The page from which the next waiting one is looked for.
    write_hand: u32,
    /// DRAM's pages in the order of rule 4.
    queue: Sequence,
    pub(super) worth: Worth<S>,
}

impl<S: Storage> Tiers<S> {
    pub(super) fn new(storage: S, capacity: Capacity, rules: Rules, costs: Costs) -> Self {
        let frames = capacity.dram.saturating_add(capacity.scm);
        Self {
            worth: Worth::new(storage, costs, frames),
            pages: Directory::new(PlacedStorage(storage), capacity),
            rules,
            list: Sequence::default(),
            hand: None,
            waiting: storage.set(),
            waiting_pages: 0,
            write_hand: 0,
            queue: Sequence::default(),
        }
    }

    /// Continues with other rules.
    pub(super) fn change(&mut self, rules: Rules) {
        // The hand belongs to SIEVE's order. In LRU's order the list's end is next.
        if rules.order != self.rules.order {
            self.hand = None;
        }
        self.rules = rules;
    }

    #[inline]
    pub(super) fn access(&mut self, access: Access, actions: &mut impl Actions) {
        // First: a compaction moves places, and the record below keeps one.
        self.make_room_in_list();
        let page = access.page.0;
        let record = self.pages.states_mut().0.get_mut(page);
        let found = record.and_then(|record| record.value.tier().map(|tier| (record, tier)));
        let Some((record, found)) = found else { return self.miss(access, actions) };
        let before = record.value;
        let bits = if before.has(WAITING) {
            // A use proves that the page is not cold, so it returns to the list.
            self.waiting.remove(page);
            self.waiting_pages -= 1;
            record.list = self.list.push_newest(page);
            // Unused: the use is the reason for its new place, and must not count twice.
            before.without(WAITING.with(USED))
        } else {
            if self.rules.order == Order::Lru {
                // The page leaves its place, and the hand must not stay on a hole.
                if self.hand == Some(record.list) {
                    self.hand = self.list.newer(record.list);
                }
                record.list = self.list.renew(page, record.list);
            }
            before.with(USED)
        };
        let note = match found {
            Tier::Dram => self.rules.keep(access, before.note()),
            Tier::Scm => self.rules.use_in_scm(access, before.note(), &mut self.worth),
        };
        let written = access.op == Op::Write;
        if written && before.is_dirty() && found == Tier::Dram && !before.has(HIT_IN_DRAM) {
            self.worth.rewritten();
        }
        let bits = bits.with_if(found == Tier::Dram, HIT_IN_DRAM).with_if(written, State::DIRTY);
        record.value = bits.with_note(note);
        if written && !before.is_dirty() {
            self.pages.insert_dirty(page);
        }
        // After the store of the record: the promotion moves the page with its new bits.
        let is_promoted = found == Tier::Scm && note & KEEP_MAX == HALVES_MAX;
        if is_promoted {
            self.promote(page, before.is_dirty(), actions);
        }
        let served = if is_promoted { Tier::Dram } else { found };
        actions.act(Action::Hit { found, served });
    }

    fn promote(&mut self, page: u32, dirty: bool, actions: &mut impl Actions) {
        let (to, why) = (Tier::Dram, Reason::WriteHot);
        actions.act(Action::Move { page: PageNo(page), to, dirty, why });
        let full = self.pages.is_full(Tier::Dram);
        // Frees the SCM frame that the leaver takes. Until then DRAM has one page more than its
        // capacity.
        self.pages.move_to(page, Tier::Dram);
        if full {
            let leaver = self.leaver();
            self.demote(leaver, Reason::Swapped, actions);
        }
        self.make_room_in_queue();
        let record = record(&mut self.pages, page);
        // One turn: the halves of SCM's note must not become turns of the queue.
        record.value = record.value.with_note(1);
        record.queue = self.queue.push_newest(page);
    }

    /// Rule 3.
    fn miss(&mut self, access: Access, actions: &mut impl Actions) {
        let (page, written) = (access.page.0, access.op == Op::Write);
        // Asked for every written page, also where the rule is off: the share is learned by asking.
        let pays = written && self.worth.goes_straight();
        let straight = self.rules.rests || pays && self.rules.straight;
        if self.pages.is_full(Tier::Dram) && !straight {
            self.make_room(actions);
        // A page that goes straight takes any frame, so the coldest page of the whole cache makes
        // room.
        } else if self.pages.is_full(Tier::Dram) && self.pages.is_full(Tier::Scm) {
            self.evict_one(actions);
        }
        self.worth.fetched(access);
        let bits = State::default().with_if(written, State::DIRTY);
        // The eviction may have freed a frame of DRAM. A page uses it before one of SCM.
        let tier = if self.pages.is_full(Tier::Dram) { Tier::Scm } else { Tier::Dram };
        let note = if tier == Tier::Scm { STRAIGHT } else { u8::from(written) };
        self.pages.insert(page, tier, bits.with_note(note));
        record(&mut self.pages, page).list = self.list.push_newest(page);
        if tier == Tier::Dram {
            self.make_room_in_queue();
            let queue = match self.rules.new_leave_first {
                true => self.queue.push_oldest(page),
                false => self.queue.push_newest(page),
            };
            record(&mut self.pages, page).queue = queue;
        }
        let why = Reason::of_miss(access.op);
        actions.act(Action::Fill { page: access.page, tier, why });
    }

    /// Frees a frame of DRAM, which is full: rules 5 and 6.
    fn make_room(&mut self, actions: &mut impl Actions) {
        let leaver = self.leaver();
        let state = self.pages.state(leaver);
        let class = Class::of(state.is_dirty(), state.has(HIT_IN_DRAM));
        if self.rules.weighs && !self.worth.demotes(leaver, class) {
            if state.is_dirty() {
                // Out of the order of sectors: it must not change the estimate of ordered write-
                // backs.
                self.worth.written(leaver, false);
            }
            self.leave(leaver, Reason::NoRoomBelow, actions);
            return;
        }
        if !self.pages.is_full(Tier::Scm) {
            let why = if state.is_dirty() { Reason::DirtyVictim } else { Reason::FreeFrame };
            self.demote(leaver, why, actions);
            return;
        }
        if self.rules.drops && !state.has(DIRTY_OR_HIT) {
            self.leave(leaver, Reason::NoEvidence, actions);
            return;
        }
        // The victim can be in either tier. If it was in DRAM, the leaver may stay.
        self.evict_one(actions);
        if self.pages.is_full(Tier::Dram) {
            let why = if state.is_dirty() { Reason::DirtyVictim } else { Reason::ColderPage };
            self.demote(leaver, why, actions);
        }
    }

    /// Returns the page that leaves DRAM next: rule 4.
    fn leaver(&mut self) -> u32 {
        loop {
            self.make_room_in_queue();
            let place = self.queue.oldest().expect("a full tier has a page");
            let page = self.queue.page(place);
            let record = record(&mut self.pages, page);
            let note = record.value.note();
            // Each turn lowers a note, so the loop ends after at most the sum of all notes.
            if note == 0 {
                return page;
            }
            record.value = record.value.with_note(note - 1);
            record.queue = self.queue.renew(page, place);
        }
    }

    #[inline]
    fn make_room_in_queue(&mut self) {
        if self.queue.is_full() {
            let pages = &mut self.pages;
            self.queue.clear_up(|page, place| record(pages, page).queue = place);
        }
    }

    #[inline]
    fn make_room_in_list(&mut self) {
        if self.list.is_full() {
            // The hand is a place, and places change. Its page identifies it.
            let (pages, hand) = (&mut self.pages, self.hand.map(|place| self.list.page(place)));
            self.list.clear_up(|page, place| record(pages, page).list = place);
            self.hand = hand.map(|page| record(pages, page).list);
        }
    }

    fn demote(&mut self, page: u32, why: Reason, actions: &mut impl Actions) {
        self.pages.count_move(Tier::Scm);
        let record = record(&mut self.pages, page);
        let state = record.value;
        let class = Class::of(state.is_dirty(), state.has(HIT_IN_DRAM));
        let note = ON_TRIAL | class.0 << CLASS_SHIFT;
        record.value =
            state.without(State::DRAM.with(HIT_IN_DRAM)).with(State::SCM).with_note(note);
        self.queue.remove(record.queue);
        self.worth.demoted(class);
        let (page, to, dirty) = (PageNo(page), Tier::Scm, state.is_dirty());
        actions.act(Action::Move { page, to, dirty, why });
    }

    /// Evicts a page of either tier: rules 7 and 8.
    fn evict_one(&mut self, actions: &mut impl Actions) {
        let capacity = self.pages.capacity();
        let frames = u64::from(capacity.dram) + u64::from(capacity.scm);
        let most = frames * u64::from(self.rules.waiting_permille) / 1000;
        loop {
            // With an empty list all pages wait, and one of them must be written.
            if u64::from(self.waiting_pages) > most || self.list.is_empty() {
                let page = self.waiting.next_around(self.write_hand).expect("one waits");
                // Onwards from the last write-back: the device's head moves in one direction.
                self.write_hand = page + 1;
                self.worth.written(page, true);
                self.leave(page, Reason::Victim, actions);
                return;
            }
            let place = self.candidate();
            let page = self.list.page(place);
            let state = self.pages.state(page);
            if !state.is_dirty() {
                self.leave(page, Reason::Victim, actions);
                return;
            }
            // A cold dirty page costs a write-back now or later. It waits for its neighbours.
            self.unlist(place);
            self.waiting.insert(page);
            self.waiting_pages += 1;
            self.pages.set_state(page, state.with(WAITING));
        }
    }

    /// Returns the place of the next page to go or to wait: rule 8. The list must not be empty.
    fn candidate(&mut self) -> u32 {
        loop {
            let place = self.hand.or_else(|| self.list.oldest()).expect("the list has a page");
            // Stored even if the page stays, so that the next search goes on here.
            self.hand = Some(place);
            let record = record(&mut self.pages, self.list.page(place));
            if self.rules.order == Order::Lru || !record.value.has(USED) {
                return place;
            }
            record.value = record.value.without(USED);
            self.hand = self.list.newer(place);
        }
    }

    /// Takes the page at a place out of the list.
    fn unlist(&mut self, place: u32) {
        if self.hand == Some(place) {
            self.hand = match self.rules.order {
                Order::Sieve => self.list.newer(place),
                Order::Lru => None,
            };
        }
        self.list.remove(place);
    }

    fn stop_waiting(&mut self, page: u32) {
        self.waiting.remove(page);
        self.waiting_pages -= 1;
    }

    /// Evicts a page from any place.
    fn leave(&mut self, page: u32, why: Reason, actions: &mut impl Actions) {
        // A copy: the eviction resets the page's record.
        let record = *record(&mut self.pages, page);
        self.pages.evict(page, why, actions);
        self.forget(page, record);
    }

    /// Takes a page that has left out of its orders.
    fn forget(&mut self, page: u32, record: Record<State>) {
        if record.value.has(State::DRAM) {
            self.queue.remove(record.queue);
        }
        if record.value.has(WAITING) {
            self.stop_waiting(page);
        } else {
            self.unlist(record.list);
        }
    }

    pub(super) fn remove(&mut self, page: u32) {
        if self.pages.state(page).tier().is_some() {
            let record = *record(&mut self.pages, page);
            self.pages.remove(page);
            self.forget(page, record);
        }
    }

    pub(super) fn cleaned(&mut self, page: u32) {
        self.pages.clean(page);
        let state = self.pages.state(page);
        if state.has(WAITING) {
            self.stop_waiting(page);
            self.make_room_in_list();
            // At the old end and under the hand: it was chosen to leave, and needs no write-back
            // now.
            let place = self.list.push_oldest(page);
            let record = record(&mut self.pages, page);
            record.value = state.without(WAITING.with(USED));
            record.list = place;
            self.hand = Some(place);
        }
    }

    pub(super) fn reclaim(&mut self, tier: Tier, actions: &mut impl Actions) {
        // SCM has room: the page stays in the cache.
        if tier == Tier::Dram && !self.pages.is_full(Tier::Scm) {
            let leaver = self.leaver();
            self.demote(leaver, Reason::Shrunk, actions);
            return;
        }
        let before = self.pages.used().of(tier);
        // The victims come from both tiers by age, until one of this tier is among them.
        while self.pages.used().of(tier) == before {
            self.evict_one(actions);
        }
    }
}

/// Returns the record of a page of the cache.
#[inline]
fn record<S: Storage>(pages: &mut Directory<PlacedStorage<S>>, page: u32) -> &mut Record<State> {
    pages.states_mut().0.get_mut(page).expect("a page of the cache has a record")
}
