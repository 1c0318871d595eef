//! Mounts in the background: a process like this one serves, and this one ends once files can be used.

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use anyhow::Context;

use crate::output;

/// The arguments of this process, for the process in the background.
pub(super) fn own_arguments() -> Vec<OsString> {
    let arguments = std::env::args_os().skip(1).map(|argument| match argument.to_str() {
        Some("--background") => OsString::from("--detached"),
        _ => argument,
    });
    arguments.collect()
}

/// Starts this program with `arguments` in the background. Waits until it prints that it is ready, or ends. Repeats the
/// line unless `is_quiet`.
pub(super) fn start(arguments: Vec<OsString>, is_quiet: bool) -> anyhow::Result<ExitCode> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start a process in the background")?;
    let mut said = String::new();
    if let Some(out) = child.stdout.take() {
        BufReader::new(out).read_line(&mut said).context("cannot wait for the mount")?;
    }
    if !said.is_empty() {
        if !is_quiet {
            output::line(said.trim_end());
        }
        return Ok(ExitCode::SUCCESS);
    }
    // It has said on standard error why.
    let status = child.wait().context("cannot wait for the mount")?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}

/// Leaves the terminal's session, whose end is not this process's.
pub(super) fn leave_terminal() -> anyhow::Result<()> {
    rustix::process::setsid().map(drop).context("cannot leave the terminal")
}

/// Says that files can be used. In the background nobody hears more from this process.
///
/// # Errors
/// Standard output's: nobody knows of the mount, which the caller takes away.
pub(super) fn say_ready(dir: &Path, detached: bool) -> anyhow::Result<()> {
    output::try_line(&format!("ready: {}", dir.display()))
        .context("cannot say on standard output that files can be used")?;
    if detached {
        let null = File::options().read(true).write(true).open("/dev/null");
        let null = null.context("cannot open /dev/null")?;
        rustix::stdio::dup2_stdout(&null).context("cannot close standard output")?;
        rustix::stdio::dup2_stderr(&null).context("cannot close standard error")?;
    }
    Ok(())
}
