//! Allowed dependencies between crates, and crates with `unsafe`.
//!
//! The tables below are the architecture in one place: dependencies point down only, and a new crate needs a row.
//! Dependencies on other crates are free.

use super::{Finding, Tree};

/// A crate's row in the architecture.
struct Row {
    name: &'static str,
    /// Crates of ours below it.
    uses: &'static [&'static str],
    /// Further crates of ours behind a feature.
    optional: &'static [&'static str],
    /// Further crates of ours for its tests.
    tests_use: &'static [&'static str],
    /// True if the crate may contain `unsafe`.
    unsafe_allowed: bool,
}

const fn row(
    name: &'static str,
    uses: &'static [&'static str],
    tests_use: &'static [&'static str],
) -> Row {
    Row { name, uses, optional: &[], tests_use, unsafe_allowed: false }
}

const ROWS: [Row; 30] = [
    Row {
        name: "everbyte-bench",
        uses: &[
            "everbyte-nbd",
            "everbyte-sqlite",
            "everbyte-fuse",
            "everbyte-cache",
            "everbyte-block",
            "everbyte-extent",
            "everbyte-fs",
            "everbyte-device",
            "everbyte-plant",
            "everbyte-policy",
            "everbyte-pool",
            "everbyte-media",
            "everbyte-report",
            "everbyte-slots",
            "everbyte-swap",
        ],
        optional: &[],
        tests_use: &["everbyte-crash", "everbyte-testkit"],
        unsafe_allowed: true,
    },
    // The program: arguments, words and glue.
    row(
        "everbyte-cli",
        &[
            "everbyte-server",
            "everbyte",
            "everbyte-control",
            "everbyte-nbd",
            "everbyte-cache",
            "everbyte-block",
            "everbyte-device",
            "everbyte-fs",
            "everbyte-policy",
            "everbyte-swap-volume",
            "everbyte-pool",
            "everbyte-media",
            "everbyte-path",
            "everbyte-report",
            "everbyte-text",
        ],
        &["everbyte-testkit"],
    ),
    // The library that others embed.
    Row {
        name: "everbyte",
        uses: &[
            "everbyte-cache",
            "everbyte-block",
            "everbyte-fs",
            "everbyte-swap-volume",
            "everbyte-device",
            "everbyte-pool",
            "everbyte-crash",
            "everbyte-media",
            "everbyte-path",
        ],
        optional: &["everbyte-nbd"],
        tests_use: &["everbyte-testkit"],
        unsafe_allowed: false,
    },
    row(
        "everbyte-server",
        &[
            "everbyte",
            "everbyte-control",
            "everbyte-nbd",
            "everbyte-device",
            "everbyte-fuse",
            "everbyte-policy",
            "everbyte-pool",
            "everbyte-media",
            "everbyte-path",
        ],
        &["everbyte-testkit"],
    ),
    // The fuzzer's entry point is a symbol with a fixed name, which counts as unsafe.
    Row {
        name: "fuzz",
        uses: &["everbyte-fuzz"],
        optional: &[],
        tests_use: &[],
        unsafe_allowed: true,
    },
    row(
        "everbyte-fuzz",
        &[
            "everbyte-control",
            "everbyte-nbd",
            "everbyte-cache",
            "everbyte-block",
            "everbyte-crash",
            "everbyte-device",
            "everbyte-fs",
            "everbyte-policy",
            "everbyte-swap-volume",
            "everbyte-pool",
            "everbyte-media",
            "everbyte-testkit",
        ],
        &["everbyte-plant"],
    ),
    // SQLite calls its file systems through tables of C functions.
    Row {
        name: "everbyte-sqlite",
        uses: &["everbyte-block", "everbyte-device", "everbyte-pool", "everbyte-media"],
        optional: &[],
        tests_use: &["everbyte-crash"],
        unsafe_allowed: true,
    },
    row("everbyte-nbd", &["everbyte-path", "everbyte-device"], &["everbyte-testkit"]),
    row(
        "everbyte-cache",
        &["everbyte-device", "everbyte-plant", "everbyte-policy"],
        &[
            "everbyte-block",
            "everbyte-crash",
            "everbyte-media",
            "everbyte-pool",
            "everbyte-testkit",
        ],
    ),
    row(
        "everbyte-block",
        &[
            "everbyte-extent",
            "everbyte-device",
            "everbyte-plant",
            "everbyte-pool",
            "everbyte-media",
        ],
        &["everbyte-crash", "everbyte-testkit"],
    ),
    row(
        "everbyte-extent",
        &["everbyte-plant", "everbyte-pool", "everbyte-media"],
        &["everbyte-crash", "everbyte-testkit"],
    ),
    row(
        "everbyte-pool",
        &["everbyte-path", "everbyte-media", "everbyte-plant", "everbyte-slots"],
        &["everbyte-crash", "everbyte-testkit"],
    ),
    // Moves pages of programs under them, and lends them out as plain memory.
    Row {
        name: "everbyte-swap",
        uses: &["everbyte-media", "everbyte-plant", "everbyte-slots"],
        optional: &[],
        tests_use: &["everbyte-crash", "everbyte-testkit"],
        unsafe_allowed: true,
    },
    // A library for programs in C.
    Row {
        name: "everbyte-swap-c",
        uses: &["everbyte-control", "everbyte-swap"],
        optional: &[],
        tests_use: &[],
        unsafe_allowed: true,
    },
    // Functions of the C library, in its place.
    Row {
        name: "everbyte-preload",
        uses: &["everbyte-control", "everbyte-slots", "everbyte-swap"],
        optional: &[],
        tests_use: &[],
        unsafe_allowed: true,
    },
    row(
        "everbyte-fuse",
        &["everbyte-path", "everbyte-fs", "everbyte-media"],
        &["everbyte-pool", "everbyte-testkit"],
    ),
    row(
        "everbyte-fs",
        &["everbyte-extent", "everbyte-plant", "everbyte-pool", "everbyte-media"],
        &["everbyte-crash", "everbyte-testkit"],
    ),
    row(
        "everbyte-swap-volume",
        &["everbyte-device", "everbyte-plant", "everbyte-pool", "everbyte-media"],
        &["everbyte-crash", "everbyte-testkit"],
    ),
    row("everbyte-crash", &["everbyte-media"], &["everbyte-testkit"]),
    row("everbyte-control", &["everbyte-path", "everbyte-text"], &[]),
    row("everbyte-device", &["everbyte-path"], &["everbyte-testkit"]),
    // Descriptors instead of paths: all that open, create or unmount what a user names share it.
    row("everbyte-path", &[], &["everbyte-testkit"]),
    // One rule for terminals and logs, which clients, servers and commands share.
    row("everbyte-text", &[], &[]),
    row("everbyte-plant", &[], &[]),
    row("everbyte-policy", &["everbyte-path"], &[]),
    // Pages of results: the program and the benchmarks draw them alike.
    row("everbyte-report", &[], &[]),
    row("everbyte-slots", &[], &[]),
    // Only tests and the fuzzer depend on it, so a feature may add any crate.
    Row {
        name: "everbyte-testkit",
        uses: &[],
        optional: &["everbyte-crash", "everbyte-fs", "everbyte-media", "everbyte-pool"],
        tests_use: &[],
        unsafe_allowed: false,
    },
    Row {
        name: "everbyte-media",
        uses: &["everbyte-path"],
        optional: &[],
        tests_use: &["everbyte-testkit"],
        unsafe_allowed: true,
    },
    row("xtask", &["everbyte-report"], &[]),
];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut members = Vec::new();
    for file in tree.files() {
        let Some(folder) = file.path.strip_suffix("/Cargo.toml") else { continue };
        let Ok(manifest) = file.text.parse::<toml::Table>() else {
            findings.push(Finding::new(&file.path, 0, "is no TOML"));
            continue;
        };
        check_manifest(&file.path, folder, &manifest, &mut findings);
        let name = folder.rsplit('/').next().unwrap_or(folder);
        if let Some(row) = ROWS.iter().find(|row| row.name == name) {
            members.push(row.name);
            check_unsafe(tree, folder, row, &mut findings);
        }
    }
    for row in ROWS.iter().filter(|row| !members.contains(&row.name)) {
        let what = format!("the table has a row for {}, which does not exist", row.name);
        findings.push(Finding::new("xtask/src/tidy/layers.rs", 0, what));
    }
    findings
}

fn check_manifest(path: &str, folder: &str, manifest: &toml::Table, findings: &mut Vec<Finding>) {
    let mut report = |what: String| findings.push(Finding::new(path, 0, what));
    let package = manifest.get("package").and_then(|package| package.get("name"));
    let name = package.and_then(toml::Value::as_str).unwrap_or("");
    if folder.rsplit('/').next() != Some(name) {
        report(format!("package {name} lies in {folder}: folder and crate have one name"));
    }
    let inherits = manifest.get("lints").and_then(|lints| lints.get("workspace"));
    // A workspace of its own has nothing to inherit from.
    let is_root = manifest.contains_key("workspace");
    if !is_root && inherits.and_then(toml::Value::as_bool) != Some(true) {
        report("does not inherit the workspace's lints".into());
    }
    let Some(row) = ROWS.iter().find(|row| row.name == name) else {
        report(format!("crate {name} has no row in xtask's table of layers"));
        return;
    };
    for Dependency { section, used, is_optional } in our_dependencies(manifest) {
        let for_tests = section == "dev-dependencies";
        let allowed = row.uses.contains(&used.as_str())
            || (is_optional && row.optional.contains(&used.as_str()))
            || (for_tests && row.tests_use.contains(&used.as_str()))
            || (for_tests && used == name);
        if !allowed {
            report(format!("{section}: {name} must not depend on {used}; see the table of layers"));
        }
    }
}

/// A dependency on a crate of ours.
struct Dependency {
    section: &'static str,
    used: String,
    /// True if the dependency exists with some feature only.
    is_optional: bool,
}

/// All dependencies on crates of ours, those for some targets included.
fn our_dependencies(manifest: &toml::Table) -> Vec<Dependency> {
    let targets = manifest.get("target").and_then(toml::Value::as_table);
    let per_target = targets.into_iter().flat_map(|targets| targets.values());
    let tables = std::iter::once(manifest).chain(per_target.filter_map(toml::Value::as_table));
    let mut found = Vec::new();
    for table in tables {
        for section in ["dependencies", "dev-dependencies", "build-dependencies"] {
            let Some(list) = table.get(section).and_then(toml::Value::as_table) else { continue };
            for (key, value) in list {
                let renamed = value.get("package").and_then(toml::Value::as_str);
                let name = renamed.unwrap_or(key);
                if name.starts_with("everbyte") || name == "xtask" {
                    let optional = value.get("optional").and_then(toml::Value::as_bool);
                    let is_optional = optional == Some(true);
                    found.push(Dependency { section, used: name.to_owned(), is_optional });
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
        assert_eq!(found.len(), ROWS.len());
    }
}
