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
/// The types of the headers of a loaded part, and of the dynamic section.
const LOADED: u32 = 1;
const DYNAMIC: u32 = 2;
/// The entries of the dynamic section with the address and the length of its strings.
const STRINGS: u64 = 5;
const STRINGS_BYTES: u64 = 10;
/// Maximum number of inspected bytes of the dynamic section, and of its strings.
const DYNAMIC_BYTES_MAX: u64 = 64 << 10;
const STRINGS_BYTES_MAX: u64 = 64 << 20;
/// Sanitizers: the start of the library's name, the first function, and the name.
const SANITIZERS: [(&str, &str, &str); 5] = [
    ("libasan.so", "__asan_init", "AddressSanitizer"),
    ("libhwasan.so", "__hwasan_init", "HWAddressSanitizer"),
    ("libtsan.so", "__tsan_init", "ThreadSanitizer"),
    ("liblsan.so", "__lsan_init", "LeakSanitizer"),
    ("libclang_rt.msan", "__msan_init", "MemorySanitizer"),
];
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
    match read_dynamic(&file) {
        Some(Some(dynamic)) => match sanitizer(&dynamic) {
            Some(name) => bail!(
                "{shown} is built with {name}, which replaces the heap itself: use a build without it"
            ),
            None => Ok(()),
        },
        Some(None) => bail!(
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

/// The contents of a dynamic program that matter here.
struct Dynamic {
    /// The strings of its loader: names of libraries and of functions.
    strings: Vec<u8>,
}

/// One program header.
struct Header {
    kind: u32,
    offset: u64,
    address: u64,
    bytes: u64,
}

/// `Some(None)` for a program without a loader; `None` if it is not a program for this machine.
fn read_dynamic(file: &File) -> Option<Option<Dynamic>> {
    let headers = program_headers(file)?;
    if !headers.iter().any(|header| header.kind == LOADER) {
        return Some(None);
    }
    let strings = dynamic_strings(file, &headers).unwrap_or_default();
    Some(Some(Dynamic { strings }))
}

fn program_headers(file: &File) -> Option<Vec<Header>> {
    let mut head = [0; 64];
    file.read_exact_at(&mut head, 0).ok()?;
    let half = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
    if !head.starts_with(b"\x7fELF") || head[4] != CLASS_64 || half(18) != X86_64 {
        return None;
    }
    let first = word(&head, 32);
    // Bounded: the count comes from the file.
    let (each, count) = (u64::from(half(54)), half(56).min(HEADERS_MAX));
    let read = |nth: u64| {
        let mut header = [0; HEADER_BYTES];
        let at = nth.checked_mul(each)?.checked_add(first)?;
        file.read_exact_at(&mut header, at).ok()?;
        let kind = u32::from_le_bytes([header[0], header[1], header[2], header[3]]);
        let (offset, address) = (word(&header, 8), word(&header, 16));
        Some(Header { kind, offset, address, bytes: word(&header, 32) })
    };
    (0..u64::from(count)).map(read).collect()
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|nth| bytes[at + nth]))
}

/// The strings of the loader, named by the dynamic section.
fn dynamic_strings(file: &File, headers: &[Header]) -> Option<Vec<u8>> {
    let section = headers.iter().find(|header| header.kind == DYNAMIC)?;
    let mut entries = vec![0; usize::try_from(section.bytes.min(DYNAMIC_BYTES_MAX)).ok()?];
    file.read_exact_at(&mut entries, section.offset).ok()?;
    let value = |tag: u64| {
        let mut pairs = entries.chunks_exact(16);
        pairs.find(|pair| word(pair, 0) == tag).map(|pair| word(pair, 8))
    };
    let (address, bytes) = (value(STRINGS)?, value(STRINGS_BYTES)?.min(STRINGS_BYTES_MAX));
    let at = headers.iter().find_map(|header| {
        let within = address.checked_sub(header.address).filter(|at| *at < header.bytes)?;
        (header.kind == LOADED).then(|| header.offset.checked_add(within)).flatten()
    })?;
    let mut strings = vec![0; usize::try_from(bytes).ok()?];
    file.read_exact_at(&mut strings, at).ok()?;
    Some(strings)
}

/// The sanitizer of a program with its own allocator and map of memory.
fn sanitizer(dynamic: &Dynamic) -> Option<&'static str> {
    let mut strings = dynamic.strings.split(|byte| *byte == 0);
    strings.find_map(|string| {
        let found = SANITIZERS.iter().find(|(library, function, _)| {
            string.starts_with(library.as_bytes()) || string == function.as_bytes()
        });
        found.map(|(_, _, name)| *name)
    })
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

    /// A dynamic program with these strings.
    fn program_with_strings(strings: &[u8]) -> Vec<u8> {
        let mut bytes = program(LOADER);
        bytes[56] = 3;
        let len = u64::try_from(strings.len()).unwrap();
        let (section, text): (u64, u64) = (64 + 3 * 56, 64 + 3 * 56 + 32);
        for (kind, offset, len) in [(DYNAMIC, section, 32_u64), (LOADED, 0_u64, text + len)] {
            let mut header = [0; HEADER_BYTES];
            header[..4].copy_from_slice(&kind.to_le_bytes());
            header[8..16].copy_from_slice(&offset.to_le_bytes());
            // Addresses are file offsets plus a page.
            header[16..24].copy_from_slice(&(offset + 4096).to_le_bytes());
            header[32..40].copy_from_slice(&len.to_le_bytes());
            bytes.extend(header);
        }
        for word in [STRINGS, text + 4096, STRINGS_BYTES, len] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(strings);
        bytes
    }

    #[test]
    fn preload_refuses_sanitizers() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("program");
        for (strings, words) in [
            (&b"\0libc.so.6\0"[..], None),
            (b"\0my__asan_init\0ubsan\0", None),
            (b"\0libasan.so.8\0libc.so.6\0", Some("AddressSanitizer")),
            (b"\0__tsan_init\0", Some("ThreadSanitizer")),
        ] {
            std::fs::write(&path, program_with_strings(strings)).unwrap();
            let checked = check_program(&path).map_err(|error| error.to_string());
            assert_eq!(checked.is_ok(), words.is_none(), "{checked:?}");
            let refused = checked.err().unwrap_or_default();
            assert!(refused.contains(words.unwrap_or_default()), "{refused}");
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
