//! Allowed dependencies between crates, and crates with `unsafe`.
//!
//! `xtask/rules.toml` has the table: dependencies point down only, and a new crate needs a row.

use super::rules::{PATH, RULES, Row};
use super::{Finding, Tree};

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut members = Vec::new();
    for file in tree.files() {
        // The manifest of the workspace has no folder and no row.
        let Some(folder) = file.path.strip_suffix("/Cargo.toml") else { continue };
        let Ok(manifest) = file.text.parse::<toml::Table>() else {
            findings.push(Finding::new(&file.path, 0, "is no TOML"));
            continue;
        };
        check_manifest(&file.path, folder, &manifest, &mut findings);
        let name = folder.rsplit('/').next().unwrap_or(folder);
        if let Some(row) = RULES.crates.get(name) {
            members.push(name);
            check_unsafe(tree, folder, row, &mut findings);
        }
    }
    for name in RULES.crates.keys().filter(|name| !members.contains(&name.as_str())) {
        let what = format!("the table has a row for {name}, which does not exist");
        findings.push(Finding::new(PATH, 0, what));
    }
    findings
}

fn check_manifest(path: &str, folder: &str, manifest: &toml::Table, findings: &mut Vec<Finding>) {
    let mut report = |what: String| findings.push(Finding::new(path, 0, what));
    let package = manifest.get("package").and_then(|package| package.get("name"));
    let name = package.and_then(toml::Value::as_str).unwrap_or("");
    // Rows are found by folder and by package name, so both must be equal.
    if folder.rsplit('/').next() != Some(name) {
        report(format!("package {name} lies in {folder}: folder and crate have one name"));
    }
    let inherits = manifest.get("lints").and_then(|lints| lints.get("workspace"));
    // A workspace of its own has nothing to inherit from.
    let is_root = manifest.contains_key("workspace");
    if !is_root && inherits.and_then(toml::Value::as_bool) != Some(true) {
        report("does not inherit the workspace's lints".into());
    }
    let Some(row) = RULES.crates.get(name) else {
        report(format!("crate {name} has no row in {PATH}"));
        return;
    };
    for (section, used, is_optional) in our_dependencies(manifest) {
        // A crate may depend on itself in tests, with other features.
        let for_tests = section == "dev-dependencies";
        let has = |names: &[String]| names.contains(&used);
        let allowed = has(&row.uses)
            || (is_optional && has(&row.optional))
            || (for_tests && (has(&row.tests_use) || used == name));
        if !allowed {
            report(format!("{section}: {name} must not depend on {used}; see the table of layers"));
        }
    }
}

/// Dependencies on crates of ours, those of single targets included: section, crate, and true for a dependency behind a
/// feature.
fn our_dependencies(manifest: &toml::Table) -> Vec<(&'static str, String, bool)> {
    let targets = manifest.get("target").and_then(toml::Value::as_table);
    let per_target = targets.into_iter().flat_map(|targets| targets.values());
    let tables = std::iter::once(manifest).chain(per_target.filter_map(toml::Value::as_table));
    let mut found = Vec::new();
    for table in tables {
        for section in ["dependencies", "dev-dependencies", "build-dependencies"] {
            let list = table.get(section).and_then(toml::Value::as_table);
            for (key, value) in list.into_iter().flatten() {
                // A renamed dependency has its name in `package`.
                let name = value.get("package").and_then(toml::Value::as_str).unwrap_or(key);
                if name.starts_with("everbyte") || name == "xtask" {
                    let optional = value.get("optional").and_then(toml::Value::as_bool);
                    found.push((section, name.to_owned(), optional == Some(true)));
                }
            }
        }
    }
    found
}

fn check_unsafe(tree: &Tree, folder: &str, row: &Row, findings: &mut Vec<Finding>) {
    if row.unsafe_allowed {
        return;
    }
    // A package can have a library and a program, and each root forbids for itself.
    for root in ["src/lib.rs", "src/main.rs"] {
        let Some(file) = tree.get(&format!("{folder}/{root}")) else { continue };
        let forbids = file.text.lines().any(|line| line.trim() == "#![forbid(unsafe_code)]");
        if !forbids {
            let what = "lacks #![forbid(unsafe_code)]: its crate is not in the table of those that \
                        may be unsafe";
            findings.push(Finding::new(&file.path, 0, what));
        }
    }
    for file in tree.below(&format!("{folder}/")).filter(|file| file.is_rust()) {
        for (at, line) in file.text.lines().enumerate() {
            // The compiler accepts an inner opt-in below a `deny` of the workspace.
            if line.contains(concat!("allow(unsafe", "_code"))
                || line.contains(concat!("expect(unsafe", "_code"))
            {
                let what = "opts in to unsafe code, which its crate may not";
                findings.push(Finding::new(&file.path, at + 1, what));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testkit::run;
    use super::*;

    fn manifest(name: &str, rest: &str) -> String {
        format!("[package]\nname = \"{name}\"\n[lints]\nworkspace = true\n{rest}")
    }

    /// Findings about one planted crate, without findings about rows without a crate.
    fn found(name: &str, manifest: &str, root: &str) -> Vec<String> {
        let (toml, lib) =
            (format!("crates/{name}/Cargo.toml"), format!("crates/{name}/src/lib.rs"));
        let mut found = run(check, &[(&toml, manifest), (&lib, root)]);
        found.retain(|finding| !finding.starts_with("xtask/"));
        found
    }

    const SAFE: &str = "//! Head.\n#![forbid(unsafe_code)]\n";

    #[test]
    fn downward_dependency_is_fine() {
        let text = manifest("everbyte-pool", "[dependencies]\neverbyte-media.workspace = true\n");
        assert!(found("everbyte-pool", &text, SAFE).is_empty());
    }

    #[test]
    fn upward_and_sideward_dependencies_are_found() {
        for (name, section, used) in [
            ("everbyte-pool", "dependencies", "everbyte-block"),
            ("everbyte-nbd", "dependencies", "everbyte-block"),
            ("everbyte-slots", "build-dependencies", "everbyte-media"),
            ("everbyte-media", "dev-dependencies", "everbyte-crash"),
            ("everbyte-device", "target.'cfg(unix)'.dependencies", "everbyte-media"),
        ] {
            let text = manifest(name, &format!("[{section}]\n{used}.workspace = true\n"));
            assert_eq!(found(name, &text, SAFE).len(), 1, "{name} -> {used}");
        }
    }

    #[test]
    fn feature_dependency_must_be_optional() {
        for (how, findings) in [("workspace = true, optional = true", 0), ("workspace = true", 1)] {
            let text =
                manifest("everbyte", &format!("[dependencies]\neverbyte-nbd = {{ {how} }}\n"));
            assert_eq!(found("everbyte", &text, SAFE).len(), findings, "{how}");
        }
    }

    #[test]
    fn renamed_dependency_is_found() {
        let rest = "[dependencies]\nx = { package = \"everbyte-pool\", path = \"../\" }\n";
        let text = manifest("everbyte-media", rest);
        assert_eq!(found("everbyte-media", &text, SAFE).len(), 1);
    }

    #[test]
    fn tests_may_use_what_their_row_says() {
        let text =
            manifest("everbyte-pool", "[dev-dependencies]\neverbyte-crash.workspace = true\n");
        assert!(found("everbyte-pool", &text, SAFE).is_empty());
        let text = manifest("everbyte-pool", "[dependencies]\neverbyte-crash.workspace = true\n");
        assert_eq!(found("everbyte-pool", &text, SAFE).len(), 1);
    }

    #[test]
    fn lints_names_and_rows_are_checked() {
        let bare = "[package]\nname = \"everbyte-pool\"\n";
        assert_eq!(found("everbyte-pool", bare, SAFE).len(), 1);
        assert_eq!(found("pool", &manifest("everbyte-pool", ""), SAFE).len(), 1);
        assert_eq!(found("everbyte-new", &manifest("everbyte-new", ""), SAFE).len(), 1);
        assert_eq!(found("everbyte-pool", "[package", SAFE).len(), 1);
    }

    #[test]
    fn unsafe_needs_a_row_that_allows_it() {
        let text = manifest("everbyte-pool", "");
        assert_eq!(found("everbyte-pool", &text, "//! Head.\n").len(), 1);
        let opt_in = concat!("#[allow(unsafe", "_code)]\nfn f() {}\n");
        assert_eq!(found("everbyte-pool", &text, &format!("{SAFE}{opt_in}")).len(), 1);
        let text = manifest("everbyte-media", "");
        assert!(found("everbyte-media", &text, opt_in).is_empty());
    }

    #[test]
    fn row_without_crate_is_found() {
        let found = run(check, &[]);
        assert_eq!(found.len(), RULES.crates.len());
    }
}
