//! Ctrl-C, and SIGTERM, in a command that has something to put away before it ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag::{register, register_conditional_shutdown};

/// Exit status when a second signal cuts short what the first one began.
pub(crate) const KILLED_STATUS: i32 = 130;

/// The error of a command that a signal has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Interrupted;

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// True once a signal has come.
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Catches signals from now on. The first is noticed where it is asked for; a second one ends the
    /// process at once.
    pub(crate) fn catch() -> anyhow::Result<Self> {
        let has_come = Arc::<AtomicBool>::default();
        for signal in [SIGINT, SIGTERM] {
            register_conditional_shutdown(signal, KILLED_STATUS, Arc::clone(&has_come))
                .and_then(|_| register(signal, Arc::clone(&has_come)))
                .context("cannot catch signals")?;
        }
        Ok(Self(has_come))
    }

    pub(crate) fn has_come(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    /// # Errors
    /// A signal has come.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        if self.has_come() {
            return Err(Interrupted.into());
        }
        Ok(())
    }
}
