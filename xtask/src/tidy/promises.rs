//! Every promise in `docs/semantics.md` names an existing test without `#[ignore]`.
//!
//! The document holds tables; the last column of each names tests in backticks: a Rust test as
//! `crate::path::test_name`, or a script as `tests/FOLDER/NAME`, with `:CASE` if the script has lines
//! `# case: CASE`. A reader judges if the test proves the promise.

use super::{Finding, Tree};

const DOCUMENT: &str = "docs/semantics.md";

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let Some(file) = tree.get(DOCUMENT) else { return Vec::new() };
    let mut findings = Vec::new();
    let lines: Vec<&str> = file.text.lines().collect();
    for (at, line) in lines.iter().enumerate() {
        // Only a ruler in the next line distinguishes a head from a promise.
        let is_head = lines.get(at + 1).is_some_and(|next| is_ruler(next));
        if !line.starts_with('|') || is_ruler(line) || is_head {
            continue;
        }
        let mut report = |what: String| findings.push(Finding::new(DOCUMENT, at + 1, what));
        let tests: Vec<&str> = last_cell(line).split('`').skip(1).step_by(2).collect();
        if tests.is_empty() {
            report("a promise without a test".into());
        }
        for test in tests.into_iter().filter(|test| !exists(tree, test)) {
            report(format!("there is no test `{test}`"));
        }
    }
    findings
}

fn is_ruler(line: &str) -> bool {
    line.starts_with('|') && line.contains("---") && !line.contains(char::is_alphanumeric)
}

fn last_cell(row: &str) -> &str {
    let row = row.trim_end();
    row.strip_suffix('|').unwrap_or(row).rsplit('|').next().unwrap_or("")
}

fn exists(tree: &Tree, test: &str) -> bool {
    if test.starts_with("tests/") {
        return is_script(tree, test);
    }
    let Some((owner, name)) = test.split_once("::") else { return false };
    let name = name.rsplit("::").next().unwrap_or(name);
    let owner = owner.replace('_', "-");
    // Tests of programs outside of `crates` have the folder as their owner.
    let folders = [format!("crates/{owner}/"), format!("{owner}/")];
    folders
        .iter()
        .flat_map(|folder| tree.below(folder))
        .any(|file| file.is_rust() && modules_match(&file.path, test) && has_test(&file.text, name))
}

/// Returns true if the script exists and the reference names one of its cases, or none if it has none.
fn is_script(tree: &Tree, test: &str) -> bool {
    let (path, case) = match test.split_once(':') {
        Some((path, case)) => (path, Some(case)),
        None => (test, None),
    };
    let Some(script) = tree.get(path) else { return false };
    let mut cases = script.text.lines().filter_map(|line| line.trim().strip_prefix("# case: "));
    match case {
        Some(case) => cases.any(|name| name == case),
        // A script with cases proves each promise by one case, so the reference must name it.
        None => cases.next().is_none(),
    }
}

/// Returns true if a function of this name is a test, and is not ignored: its attributes stand directly above
/// it, among comments.
fn has_test(text: &str, name: &str) -> bool {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let declaration = format!("fn {name}(");
    let declared = (0..lines.len()).filter(|&at| lines[at].starts_with(&declaration));
    // A comment can stand between the attributes and the function.
    let attributes = |at: usize| {
        let above = lines[..at].iter().rev();
        above.take_while(|line| line.starts_with("#[") || line.starts_with("//"))
    };
    declared.into_iter().any(|at| {
        attributes(at).any(|line| *line == "#[test]")
            && !attributes(at).any(|line| line.starts_with("#[ignore"))
    })
}

/// Returns true if the module path of `test` can lie in the file at `path`: each of its modules is
/// a folder or a file on the way there, or a module inside the file.
fn modules_match(path: &str, test: &str) -> bool {
    let modules: Vec<&str> = test.split("::").skip(1).collect();
    let Some((_, modules)) = modules.split_last() else { return false };
    let stem = path.strip_suffix(".rs").unwrap_or(path);
    let on_the_way: Vec<&str> = stem.split('/').collect();
    // Files name inline modules of tests nowhere in their paths.
    modules.iter().all(|module| on_the_way.contains(module) || *module == "tests")
}

#[cfg(test)]
mod tests {
    use super::super::testkit::run;
    use super::*;

    const HEAD: &str = "| promise | test |\n| --- | --- |\n";

    fn found(row: &str) -> Vec<String> {
        let document = format!("# Semantics\n\n{HEAD}{row}\n");
        let files = [
            ("docs/semantics.md", document.as_str()),
            (
                "crates/everbyte-pool/src/log/scan.rs",
                "mod tests {\n    #[test]\n    fn torn_is_refused() {}\n\n    fn helper() {}\n}",
            ),
            (
                "crates/everbyte-pool/tests/it/main.rs",
                "proptest! {\n    #[test]\n    // Twice.\n    fn model(\n        a in 0..2,\n    ) {}\n}\n\
                 #[test]\n#[ignore = \"it is slow\"]\nfn ignored() {}\nlet text = \"fn quoted() {}\";",
            ),
            ("tests/e2e/clients.sh", "#!/bin/bash"),
            ("tests/e2e/run.sh", "#!/bin/bash\n# case: fork\n"),
        ];
        run(check, &files)
    }

    #[test]
    fn tests_that_exist_are_accepted() {
        for test in [
            "everbyte-pool::log::scan::tests::torn_is_refused",
            "everbyte_pool::it::model",
            "tests/e2e/clients.sh",
            "tests/e2e/run.sh:fork",
        ] {
            assert!(found(&format!("| a write is whole | `{test}` |")).is_empty(), "{test}");
        }
    }

    #[test]
    fn tests_that_do_not_exist_are_found() {
        for test in [
            "everbyte-pool::log::scan::tests::gone",
            "everbyte-pool::log::scan::tests::helper",
            "everbyte-pool::it::ignored",
            "everbyte-pool::it::quoted",
            "everbyte-pool::epoch::tests::torn_is_refused",
            "everbyte-block::log::scan::tests::torn_is_refused",
            "torn_is_refused",
            "tests/e2e/gone.sh",
            "tests/e2e/run.sh",
            "tests/e2e/run.sh:gone",
            "tests/e2e/clients.sh:fork",
        ] {
            let row = format!("| a write is whole | `{test}` |");
            assert_eq!(found(&row), [format!("docs/semantics.md:5: there is no test `{test}`")]);
        }
    }

    #[test]
    fn one_missing_test_of_two_is_found() {
        let row = "| whole | `everbyte-pool::it::model`, `everbyte-pool::it::gone` |";
        assert_eq!(found(row).len(), 1);
    }

    #[test]
    fn promise_without_test_is_found() {
        assert_eq!(found("| `a` write is whole | none |").len(), 1);
        assert_eq!(found("| a write is whole | |").len(), 1);
    }
}
