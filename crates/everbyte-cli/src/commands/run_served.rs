//! `everbyte run` on an unserved pool: this process serves it while the program runs.

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command};
use std::sync::Arc;

use anyhow::Context;
use everbyte_server::OpenPool;
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

use super::server::start_control;

/// Serves the pool until the program has ended. Returns its exit status, or, if a signal ended it,
/// 128 and the number of the signal.
pub(super) fn serve(pool: &Arc<OpenPool>, command: &mut Command) -> anyhow::Result<u8> {
    pool.set_servers(&[], &[]);
    start_control(pool)?;
    let mut signals =
        Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM]).context("cannot catch signals")?;
    let mut child = command.spawn()?;
    let handle = signals.handle();
    let pid = pid_of(&child);
    let forwarding = std::thread::Builder::new().name("signals".into()).spawn(move || {
        for signal in signals.forever() {
            // The program receives the terminal's signals already.
            let forwarded = match signal {
                SIGTERM => Signal::TERM,
                SIGHUP => Signal::HUP,
                _ => continue,
            };
            if let Some(pid) = pid {
                // It may have ended a moment ago.
                let _sent = kill_process(pid, forwarded);
            }
        }
    });
    forwarding.context("no thread for signals")?;
    let status = child.wait().context("cannot wait for the program")?;
    handle.close();
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    Ok(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX))
}

fn pid_of(child: &Child) -> Option<Pid> {
    Pid::from_raw(i32::try_from(child.id()).ok()?)
}
