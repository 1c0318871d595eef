//! Paths from users go through `everbyte-path` in commands and the server.
//!
//! A path is checked and used by one descriptor there. A direct call of `std::fs` follows links of other users,
//! waits for the other end of a named pipe, and looks a path up again for each use.

use super::sizes::production_lines;
use super::{Finding, Tree};

/// Code with paths from users: folders, and single files of crates below.
const SCOPE: [&str; 7] = [
    "crates/everbyte/src/",
    "crates/everbyte-cli/src/",
    "crates/everbyte-control/src/",
    "crates/everbyte-fuse/src/",
    "crates/everbyte-server/src/",
    "crates/everbyte-policy/src/trace/input.rs",
    "crates/everbyte-pool/src/file.rs",
];

/// Calls with a path.
const CALLS: [&str; 20] = [
    "File::open(",
    "File::create(",
    "File::create_new(",
    "File::options(",
    "OpenOptions::new(",
    "FileOptions::new(",
    "fs::canonicalize(",
    "fs::copy(",
    "fs::create_dir",
    "fs::metadata(",
    "fs::read(",
    "fs::read_dir(",
    "fs::read_link(",
    "fs::read_to_string(",
    "fs::remove_",
    "fs::rename(",
    "fs::set_permissions(",
    "fs::symlink_metadata(",
    "fs::write(",
    "NamedTempFile::",
];

/// Methods of paths with a look-up.
const METHODS: [&str; 8] = [
    ".exists()",
    ".try_exists()",
    ".is_dir()",
    ".is_symlink()",
    ".canonicalize()",
    ".read_dir()",
    ".read_link()",
    ".symlink_metadata()",
];

/// Files of the kernel at fixed places.
const OF_THE_KERNEL: [&str; 4] = ["\"/proc/", "\"/sys/", "\"/dev/", "proc/self"];

/// Files with permitted calls, and the reason of each.
const EXCEPTIONS: [(&str, &str); EXCEPTIONS_LEN] = [
    ("crates/everbyte-cli/src/demo/", "its folder is new and for its user alone"),
    (
        "crates/everbyte-cli/src/simulation/task_result.rs",
        "results are saved as a whole by equal processes at once",
    ),
    (
        "crates/everbyte-cli/src/commands/run.rs",
        "the program that it starts opens the paths itself",
    ),
    ("crates/everbyte-fuse/src/presence.rs", "it reads files of the kernel"),
    ("crates/everbyte-control/src/lib.rs", "the name of a socket is compared, not opened"),
];

const EXCEPTIONS_LEN: usize = 5;

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut used = [false; EXCEPTIONS_LEN];
    for file in tree.rust().filter(|file| !file.is_test_code()) {
        if !SCOPE.iter().any(|scope| file.path.starts_with(scope)) {
            continue;
        }
        let lines = file.text.lines().take(production_lines(&file.text));
        for (at, line) in lines.enumerate().filter(|(_, line)| has_call(line)) {
            match EXCEPTIONS.iter().position(|(path, _)| file.path.starts_with(path)) {
                Some(exception) => used[exception] = true,
                None => {
                    let what = "uses a path directly: another user can change it meanwhile, or it is a named \
                                pipe; use everbyte-path";
                    let call = line.trim();
                    findings.push(Finding::new(&file.path, at + 1, format!("`{call}` {what}")));
                }
            }
        }
    }
    let there = |path: &str| tree.rust().any(|file| file.path.starts_with(path));
    for ((path, _), _) in
        EXCEPTIONS.iter().zip(used).filter(|((path, _), used)| !used && there(path))
    {
        findings.push(Finding::new(
            "xtask/src/tidy/paths.rs",
            0,
            format!("{path} needs no exception"),
        ));
    }
    findings
}

/// Returns true if the line has a call with a path.
fn has_call(line: &str) -> bool {
    let code = line.trim_start();
    if code.starts_with("//") || OF_THE_KERNEL.iter().any(|path| code.contains(path)) {
        return false;
    }
    let is_own_name = |at: usize| code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
    let calls = CALLS.iter().flat_map(|call| code.match_indices(call));
    calls.into_iter().any(|(at, _)| !is_own_name(at))
        || METHODS.iter().any(|method| code.contains(method))
}

#[cfg(test)]
mod tests {
    use super::super::testkit::run;
    use super::*;

    const COMMAND: &str = "crates/everbyte-cli/src/commands/x.rs";

    fn found(path: &str, line: &str) -> usize {
        let found = run(check, &[(path, &format!("//! Head.\n{line}\n"))]);
        found.iter().filter(|finding| !finding.starts_with("xtask/")).count()
    }

    #[test]
    fn direct_calls_are_found_in_scope_only() {
        for line in [
            "let file = File::open(path)?;",
            "let text = std::fs::read_to_string(&path)?;",
            "fs::remove_file(socket)?;",
            "let new = NamedTempFile::new_in(dir)?;",
            "if path.exists() {",
            "File::options().append(true).open(path)",
        ] {
            assert_eq!(found(COMMAND, line), 1, "{line}");
            assert_eq!(found("crates/everbyte-server/src/x.rs", line), 1, "{line}");
            assert_eq!(found("crates/everbyte-pool/src/file.rs", line), 1, "{line}");
            assert_eq!(found("crates/everbyte-pool/src/alloc.rs", line), 0, "{line}");
            assert_eq!(found("crates/everbyte-cli/tests/cli/x.rs", line), 0, "{line}");
            assert_eq!(found("crates/everbyte-cli/src/demo/x.rs", line), 0, "{line}");
        }
    }

    #[test]
    fn other_calls_and_files_of_the_kernel_are_fine() {
        for line in [
            "// File::open(path) would wait.",
            "let text = std::fs::read_to_string(\"/proc/locks\")?;",
            "let (file, _) = everbyte_path::open(path, Access::Read, &kinds)?;",
            "let entries = everbyte_fs::read(inode)?;",
            "use std::fs::File;",
            "let file = MyFile::open(path);",
            "kind.is_file()",
        ] {
            assert_eq!(found(COMMAND, line), 0, "{line}");
        }
        assert_eq!(found(COMMAND, "#[cfg(test)]\nmod tests {\nfs::write(path, text);\n}"), 0);
    }

    #[test]
    fn unused_exception_is_found() {
        let found = run(check, &[("crates/everbyte-control/src/lib.rs", "//! Head.\n")]);
        assert_eq!(found.len(), 1, "{found:?}");
    }
}
