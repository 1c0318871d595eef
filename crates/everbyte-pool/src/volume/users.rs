//! Those who are inside a volume, for deletion to wait for.

/// Those who are inside a volume through its kind.
pub trait Users: Send + Sync {
    /// Returns once nobody is inside any more. Called after the volume was marked as gone, so
    /// that whoever comes later is refused.
    fn wait_idle(&self);
}
