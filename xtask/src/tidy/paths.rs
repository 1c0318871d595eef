//! Paths from users go through `everbyte-path` in commands and the server. `xtask/rules.toml` has the scope, the calls and
//! the exceptions.

use std::collections::BTreeSet;

use super::rules::{PATH, RULES};
use super::sizes::production_lines;
use super::{Finding, Tree};

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let (mut findings, mut used) = (Vec::new(), BTreeSet::new());
    let is_in_scope = |path: &str| RULES.paths.scope.iter().any(|scope| path.starts_with(scope));
    let files = tree.rust().filter(|file| !file.is_test_code() && is_in_scope(&file.path));
    for file in files {
        // Tests use their own folders, and no other user changes them.
        let lines = file.text.lines().take(production_lines(&file.text));
        for (at, line) in lines.enumerate().filter(|(_, line)| has_call(line)) {
            let mut exceptions = RULES.paths.exceptions.keys();
            match exceptions.find(|path| file.path.starts_with(*path)) {
                Some(exception) => drop(used.insert(exception)),
                None => {
                    let what = "uses a path directly: another user can change it meanwhile, or it is a named \
                                pipe; use everbyte-path";
                    let call = line.trim();
                    findings.push(Finding::new(&file.path, at + 1, format!("`{call}` {what}")));
                }
            }
        }
    }
    let is_there = |path: &str| tree.rust().any(|file| file.path.starts_with(path));
    let unused =
        RULES.paths.exceptions.keys().filter(|path| !used.contains(path) && is_there(path));
    findings.extend(unused.map(|path| Finding::new(PATH, 0, format!("{path} needs no exception"))));
    findings
}

/// Returns true if the line has a call with a path.
fn has_call(line: &str) -> bool {
    let code = line.trim_start();
    let has = |words: &[String]| words.iter().any(|word| code.contains(word));
    if code.starts_with("//") || has(&RULES.paths.of_the_kernel) {
        return false;
    }
    // `MyFile::open(` is a call of another type.
    let is_own_name = |at: usize| code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
    let mut calls = RULES.paths.calls.iter().flat_map(|call| code.match_indices(call));
    calls.any(|(at, _)| !is_own_name(at)) || has(&RULES.paths.methods)
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
