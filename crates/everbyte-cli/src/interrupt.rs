//! Ctrl-C, and SIGTERM, in a command with clean-up work before its end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag::{register, register_conditional_shutdown};

/// Exit status after a second signal has ended the work begun by the first.
pub(crate) const KILLED_STATUS: i32 = 130;

/// The error of a command ended by a signal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InterruptError;

impl std::fmt::Display for InterruptError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for InterruptError {}

/// True once a signal has come.
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Catches signals from now on. The command polls for the first one; a second one ends the
    /// process immediately.
    pub(crate) fn catch() -> anyhow::Result<Self> {
        let has_come = Arc::<AtomicBool>::default();
        for signal in [SIGINT, SIGTERM] {
            // In this order the first signal sets the flag, and the second one finds it set and
            // ends the process.
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
            return Err(InterruptError.into());
        }
        Ok(())
    }
}
