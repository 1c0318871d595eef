//! The one open handle of a volume.
//!
//! Invariant: a volume has at most one handle at a time, because its kind keeps locks in DRAM, and
//! two sets of locks guard nothing.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use everbyte_media::Medium;

use super::{Users, Volume};

/// The right to use a volume, held by its kind while the volume is open. A drop releases it.
pub struct VolumeHandle<M: Medium>(Arc<Volume<M>>);

impl<M: Medium> VolumeHandle<M> {
    /// Takes the volume for a kind; `None` if it is taken.
    pub(crate) fn take(volume: Arc<Volume<M>>) -> Option<Self> {
        let taken = volume.taken.swap(true, Ordering::AcqRel);
        (!taken).then(|| Self(volume))
    }

    /// The volume.
    #[must_use]
    pub fn volume(&self) -> &Arc<Volume<M>> {
        &self.0
    }

    /// Sets the users of the volume; deletion waits for them.
    pub fn set_users(&self, users: Arc<dyn Users>) {
        *self.0.users.lock() = Some(users);
    }
}

impl<M: Medium> Deref for VolumeHandle<M> {
    type Target = Volume<M>;

    fn deref(&self) -> &Volume<M> {
        &self.0
    }
}

impl<M: Medium> Drop for VolumeHandle<M> {
    fn drop(&mut self) {
        // Before the volume can be taken again: its next holder sets its own users.
        *self.0.users.lock() = None;
        self.0.taken.store(false, Ordering::Release);
    }
}

impl<M: Medium> Volume<M> {
    /// Returns once the volume's kind has no users. The volume has been marked as gone.
    pub(crate) fn wait_idle(&self) {
        // A copy: the wait may be long, and a drop of the handle needs this lock.
        let users = self.users.lock().clone();
        if let Some(users) = users {
            users.wait_idle();
        }
    }
}
