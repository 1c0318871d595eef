//! Mounts in the background: a process like this one serves, and this one ends once files can be used.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use anyhow::Context;
use everbyte_path::{Access, Kind, open};

use super::service;
use crate::output;

/// The arguments of this process, for the process in the background.
pub(super) fn own_arguments() -> Vec<OsString> {
    let arguments = std::env::args_os().skip(1).map(|argument| match argument.to_str() {
        Some("--background") => OsString::from("--detached"),
        _ => argument,
    });
    arguments.collect()
}

/// Starts this program with `arguments` in the background. Waits until it prints the ready line, or
/// ends. Repeats the line unless `is_quiet`.
pub(super) fn start(arguments: Vec<OsString>, is_quiet: bool) -> anyhow::Result<ExitCode> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        // One line on this pipe is the sign that files can be used. Its end without a line is a
        // failure.
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start a process in the background")?;
    let mut said = String::new();
    if let Some(out) = child.stdout.take() {
        BufReader::new(out).read_line(&mut said).context("cannot wait for the mount")?;
    }
    if !said.is_empty() {
        if !is_quiet {
            output::text(said.trim_end());
        }
        return Ok(ExitCode::SUCCESS);
    }
    // It has said on standard error why.
    let status = child.wait().context("cannot wait for the mount")?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    // A signal may have ended it without an error before the mount.
    let code = code.filter(|&code| code != 0);
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}

/// Leaves the terminal's session: its end must not end this process.
pub(super) fn leave_terminal() -> anyhow::Result<()> {
    // A session without a terminal: neither SIGHUP nor Ctrl-C of the shell reaches the server.
    rustix::process::setsid().map(drop).context("cannot leave the terminal")
}

/// The socket of the system's log.
const SYSTEM_LOG: &str = "/dev/log";

/// Writes the reason of the failure of the background process to the system's log: its standard
/// error has no reader.
pub(super) fn log_failure(dir: &Path, error: &anyhow::Error) {
    // Without a system log the error has no other receiver.
    let _ = send_to_log(Path::new(SYSTEM_LOG), dir, error);
}

fn send_to_log(log: &Path, dir: &Path, error: &anyhow::Error) -> std::io::Result<()> {
    /// An error of a system service, as RFC 3164 numbers them.
    const PRIORITY: u8 = 3 << 3 | 3;
    let (process, dir) = (std::process::id(), dir.display());
    let line = format!("<{PRIORITY}>everbyte[{process}]: the mount on {dir}: {error:#}");
    // A line break would forge a second entry of the log.
    let line: String = line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let line = everbyte_text::escaped(&line);
    let socket = UnixDatagram::unbound()?;
    // A full log must not delay the end.
    socket.set_nonblocking(true)?;
    socket.send_to(line.as_bytes(), log).map(drop)
}

/// Prints the ready line. In the background it is the last output of this process.
///
/// # Errors
/// An error of standard output: the mount is unknown to its user, and the caller ends it.
pub(super) fn say_ready(dir: &Path, detached: bool) -> anyhow::Result<()> {
    output::try_line(&format!("ready: {}", dir.display()))
        .context("cannot say on standard output that files can be used")?;
    // The starter waits for the end of the pipe. Later lines must not reach its terminal or its
    // scripts.
    if detached {
        let null = open("/dev/null".as_ref(), Access::ReadWrite, &[Kind::CharDevice]);
        let (null, _) = null.context("cannot open /dev/null")?;
        rustix::stdio::dup2_stdout(&null).context("cannot close standard output")?;
        rustix::stdio::dup2_stderr(&null).context("cannot close standard error")?;
    } else {
        service::ready(&format!("mounted on {}", dir.display()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_in_the_background_is_one_line_of_the_log() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let system = UnixDatagram::bind(&log).unwrap();
        let error = anyhow::anyhow!("inner\nline").context("outer");
        send_to_log(&log, Path::new("/mnt/a"), &error).unwrap();
        let mut line = [0; 200];
        let len = system.recv(&mut line).unwrap();
        let line = String::from_utf8(line[..len].to_vec()).unwrap();
        assert!(line.starts_with("<27>everbyte["), "{line}");
        assert!(line.ends_with("]: the mount on /mnt/a: outer: inner line"), "{line}");
        assert!(send_to_log(&dir.path().join("none"), dir.path(), &error).is_err());
    }
}
