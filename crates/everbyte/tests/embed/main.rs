//! Compiles and runs a program outside the workspace with `everbyte` as its only dependency, by
//! path.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A durable queue, a cache, a file system with streams and a crash test. The argument names the
/// folder.
const PROGRAM: &str = include_str!("program.rs");

/// Crates of the program alone: the library must not bring them along.
const PROGRAM_ONLY: [&str; 6] =
    ["anyhow", "clap", "everbyte-server", "indicatif", "plotters", "tracing-subscriber"];

/// A crate in its own folder, outside every workspace.
struct Embedder {
    folder: tempfile::TempDir,
    target: PathBuf,
}

impl Embedder {
    fn new(program: &str) -> Self {
        let library = Path::new(env!("CARGO_MANIFEST_DIR"));
        let folder = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let manifest = format!(
            "[package]\nname = \"embedder\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n\
             [dependencies]\neverbyte = {{ path = {library:?} }}\n\n\
             [profile.dev]\ndebug = false\n\n[workspace]\n"
        );
        put("Cargo.toml", &manifest);
        put("src/main.rs", program);
        // The present versions: the build must not download anything.
        let lock = std::fs::read_to_string(library.join("../../Cargo.lock")).unwrap();
        put("Cargo.lock", &lock);
        // Kept between runs: only the first run builds everything.
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("embed");
        Self { folder, target }
    }

    fn cargo(&self, arguments: &[&str]) -> Output {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(arguments).arg("--offline").current_dir(self.folder.path());
        cargo.env("CARGO_TARGET_DIR", &self.target).env("CARGO_TERM_COLOR", "never");
        cargo.env_remove("RUSTFLAGS");
        let output = cargo.output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "cargo {arguments:?}: {errors}");
        output
    }
}

#[test]
fn outside_project_builds_and_runs() {
    let embedder = Embedder::new(PROGRAM);
    let folder = embedder.folder.path().to_str().unwrap();
    let output = embedder.cargo(&["run", "--quiet", "--", folder]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "reader true\n");

    let tree = embedder.cargo(&["tree", "--prefix", "none", "--edges", "normal,build"]);
    let tree = String::from_utf8_lossy(&tree.stdout).into_owned();
    let used: Vec<&str> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
    assert!(used.contains(&"everbyte-pool"), "{tree}");
    for name in PROGRAM_ONLY {
        assert!(!used.contains(&name), "the library brings {name} along: {tree}");
    }
}
