//! Operations in progress in a volume; deletion waits for them.

/// The operations in progress in a volume, as its kind knows them.
pub trait Users: Send + Sync {
    /// Waits until no operation is in progress. The caller has marked the volume as gone, so later
    /// operations are refused.
    fn wait_idle(&self);
}
