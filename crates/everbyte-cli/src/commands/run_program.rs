//! The program of `everbyte run`: its path, and the check for preloading a library into it.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use everbyte_path::{Access, Kind, look, open};

/// Maximum number of inspected program headers.
const HEADERS_MAX: u16 = 512;
/// Bytes at the start of a script with the name of its interpreter.
const START_BYTES: u64 = 256;
const HEADER_BYTES: usize = 56;
/// The type of the program header with the name of a loader.
const LOADER: u32 = 3;
/// The attribute of a file with capabilities for programs.
const CAPABILITIES: &str = "security.capability";
/// The class and the machine of programs for this one: 64 bit, x86-64.
const CLASS_64: u8 = 2;
const X86_64: u16 = 62;

/// The file a shell would run.
///
/// # Errors
/// The program does not exist.
pub(super) fn find_program(name: &OsStr) -> anyhow::Result<PathBuf> {
    let named = Path::new(name);
    // As execvp: a name with a slash is a path, and PATH is not searched.
    if named.components().count() > 1 || named.is_absolute() {
        if !is_file(named) {
            bail!("there is no program {}", named.display());
        }
        return Ok(named.to_owned());
    }
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&folders).map(|folder| folder.join(named)).find(|path| {
        look(path)
            .is_ok_and(|found| found.kind() == Kind::File && found.metadata().mode() & 0o111 != 0)
    });
    found.with_context(|| format!("there is no program {} in PATH", named.display()))
}

/// Checks that the program, or its interpreter, is linked dynamically and runs as this user.
///
/// # Errors
/// The reason why a library cannot be preloaded into it.
pub(super) fn check_program(program: &Path) -> anyhow::Result<()> {
    let mut start = Vec::new();
    let opened = open(program, Access::Read, &[Kind::File]);
    let (file, _) = opened.with_context(|| format!("cannot read {}", program.display()))?;
    file.take(START_BYTES)
        .read_to_end(&mut start)
        .with_context(|| program.display().to_string())?;
    // The kernel starts the reader of a script, so the reader must be dynamic.
    if let Some(line) = start.strip_prefix(b"#!") {
        let line = String::from_utf8_lossy(line);
        let reader = line.lines().next().and_then(|line| line.split_whitespace().next());
        return match reader.map(Path::new).filter(|reader| is_file(reader)) {
            Some(reader) => check_binary(reader),
            // The kernel reports a missing reader better than this check could.
            None => Ok(()),
        };
    }
    check_binary(program)
}

fn is_file(path: &Path) -> bool {
    look(path).is_ok_and(|found| found.kind() == Kind::File)
}

fn check_binary(program: &Path) -> anyhow::Result<()> {
    let shown = program.display();
    let opened = open(program, Access::Read, &[Kind::File]);
    let (file, metadata) = opened.with_context(|| format!("cannot read {shown}"))?;
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    // The loader ignores LD_PRELOAD for programs that change their rights.
    let changes_user = metadata.mode() & 0o4000 != 0 && metadata.uid() != uid;
    let changes_group = metadata.mode() & 0o2000 != 0 && metadata.gid() != gid;
    if changes_user || changes_group {
        bail!("{shown} runs as another user or group, so nothing can be preloaded into it");
    }
    // For root they add nothing, and the loader keeps the preload.
    if uid != 0 && has_capabilities(&file) {
        bail!("{shown} has file capabilities, so nothing can be preloaded into it");
    }
    match is_dynamic(&file) {
        Some(true) => Ok(()),
        Some(false) => bail!(
            "{shown} is statically linked, so nothing can be preloaded into it: use a dynamically linked \
             build"
        ),
        None => bail!("{shown} is no program for 64-bit x86"),
    }
}

/// True if the file gives the program capabilities. Root's programs have them anyway.
fn has_capabilities(file: &File) -> bool {
    rustix::fs::fgetxattr(file, CAPABILITIES, &mut [0; 64]).is_ok_and(|len| len > 0)
}

/// True if a loader loads the program; `None` if it is not a program for this machine.
fn is_dynamic(file: &File) -> Option<bool> {
    let mut head = [0; 64];
    file.read_exact_at(&mut head, 0).ok()?;
    let half = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
    if !head.starts_with(b"\x7fELF") || head[4] != CLASS_64 || half(18) != X86_64 {
        return None;
    }
    let first = u64::from_le_bytes(head[32..40].try_into().ok()?);
    // Bounded: the count comes from the file.
    let (each, count) = (u64::from(half(54)), half(56).min(HEADERS_MAX));
    let mut found = false;
    for nth in 0..u64::from(count) {
        let mut header = [0; HEADER_BYTES];
        let at = nth.checked_mul(each)?.checked_add(first)?;
        file.read_exact_at(&mut header, at).ok()?;
        found |= u32::from_le_bytes([header[0], header[1], header[2], header[3]]) == LOADER;
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program with one header of this type.
    fn program(header: u32) -> Vec<u8> {
        let mut bytes = vec![0; 64 + HEADER_BYTES];
        bytes[..5].copy_from_slice(b"\x7fELF\x02");
        bytes[18] = 62;
        bytes[32] = 64;
        (bytes[54], bytes[56]) = (56, 1);
        bytes[64..68].copy_from_slice(&header.to_le_bytes());
        bytes
    }

    #[test]
    fn preload_needs_dynamic_loader() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("program");
        let mut far = program(3);
        far[32..40].copy_from_slice(&u64::MAX.to_le_bytes());
        let script = format!("#! {} -x\n", folder.path().join("none").display()).into_bytes();
        for (bytes, words) in [
            (program(3), None),
            (program(1), Some("statically linked")),
            (program(3)[..80].to_vec(), Some("no program")),
            (far, Some("no program")),
            (b"\x7fELF".to_vec(), Some("no program")),
            (vec![], Some("no program")),
            (script, None),
            (b"#!/bin/sh\n".to_vec(), None),
        ] {
            std::fs::write(&path, &bytes).unwrap();
            let checked = check_program(&path).map_err(|error| error.to_string());
            match words {
                None => assert_eq!(checked, Ok(())),
                Some(words) => {
                    assert!(checked.as_ref().unwrap_err().contains(words), "{checked:?}")
                }
            }
        }
    }

    #[test]
    fn program_lookup_follows_shell_rules() {
        assert!(find_program(OsStr::new("sh")).unwrap().is_absolute());
        let missing = find_program(OsStr::new("no-such-program")).unwrap_err().to_string();
        assert!(missing.contains("PATH"), "{missing}");
        assert!(find_program(OsStr::new("/no/such/program")).is_err());
    }
}
