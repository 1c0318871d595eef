//! Packages of Debian, and an archive with a static program.
//!
//! `xtask/debian` has the contents of each package as data. `dpkg-deb` writes the archives: every machine that can test a
//! package has it, and it checks the control file. A crate for `ar` would add a second writer of the format.
//!
//! Invariant: the same commit and toolchain make the same bytes. All times are the commit's.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

const VERSION: &str = env!("CARGO_PKG_VERSION");
const MAINTAINER: &str = "The Everbyte developers <developers@everbyte.invalid>";
const PACKAGES: [&str; 2] = ["everbyte", "libeverbyte-region-dev"];
/// Linker argument of the C library. Its number rises with each change that breaks programs.
const SONAME: &str = "link-arg=-Wl,-soname,libeverbyte_region.so.0";
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Options of the builds
#[derive(clap::Args)]
pub(super) struct PackageArgs {
    /// Use unoptimized programs, for tests of packages
    #[arg(long)]
    debug: bool,
}

struct Build<'a> {
    root: &'a Path,
    /// The folder of cargo's outputs.
    target: PathBuf,
    debug: bool,
    /// Seconds since 1970, and the same time for people.
    time: (String, String),
}

/// Writes the packages to `target/debian`.
///
/// # Errors
/// A build or a tool fails.
pub(super) fn debs(root: &Path, args: &PackageArgs) -> Result<()> {
    let build = Build::new(root, args)?;
    let packages =
        ["-p", "everbyte-cli", "-p", "everbyte-preload", "-p", "everbyte-sqlite-extension"];
    build.cargo(&[&["build"], &packages[..]].concat(), &[])?;
    let folder = build.target.join("debian");
    // In a folder of its own: cargo would take the library with a soname for the one without.
    let region = folder.join("region");
    let path = region.to_str().context("the path of the target folder is not UTF-8")?;
    let words = ["rustc", "-p", "everbyte-swap-c", "--lib", "--target-dir", path];
    build.cargo(&words, &["--", "-C", SONAME])?;
    let programs = build.target.join(build.profile());
    let made = folder.join("made");
    build.make_pages(&programs.join("everbyte"), &made)?;
    let read = |path: &str| fs::read_to_string(root.join(path)).with_context(|| path.to_owned());
    let pkg_config = read("xtask/debian/everbyte_region.pc")?.replace("@VERSION@", VERSION);
    fs::write(made.join("everbyte_region.pc"), pkg_config)?;
    for package in PACKAGES {
        let stage = folder.join(package);
        clear(&stage)?;
        fs::create_dir(stage.join("DEBIAN"))?;
        let source = |source: &str| match source.split_once('/') {
            Some(("build", rest)) => programs.join(rest),
            Some(("region", rest)) => region.join(build.profile()).join(rest),
            Some(("made", rest)) => made.join(rest),
            _ => root.join(source),
        };
        for line in read(&format!("xtask/debian/{package}/files"))?.lines() {
            if !line.starts_with('#') {
                put(line, source, &stage).with_context(|| line.to_owned())?;
            }
        }
        build.describe(package, &stage)?;
        let file = folder.join(format!("{package}_{VERSION}_amd64.deb"));
        // The compression of a debug build would take longer than its build.
        let speed: &[&str] = if args.debug { &["-Zgzip", "-z1"] } else { &["-Zxz"] };
        let mut dpkg = Command::new("dpkg-deb");
        dpkg.env("SOURCE_DATE_EPOCH", &build.time.0).args(speed);
        run(dpkg.arg("--root-owner-group").arg("--build").arg(&stage).arg(&file))?;
        println!("{}", file.display());
    }
    Ok(())
}

/// Writes an archive with a static program, and its checksum, to `target/dist`.
///
/// # Errors
/// A build or a tool fails.
pub(super) fn dist(root: &Path, args: &PackageArgs) -> Result<()> {
    let build = Build::new(root, args)?;
    // With the target named, build scripts stay dynamic: the flag would break macros.
    let flags = ["--config", "build.rustflags=['-C', 'target-feature=+crt-static']"];
    build.cargo(&["build", "-p", "everbyte-cli", "--target", TARGET], &flags)?;
    let program = build.target.join(TARGET).join(build.profile()).join("everbyte");
    let (folder, name) = (build.target.join("dist"), format!("everbyte-{VERSION}-x86_64-linux"));
    let stage = folder.join(&name);
    clear(&folder)?;
    build.make_pages(&program, &stage)?;
    copy(&program, &stage.join("everbyte"), 0o755)?;
    strip(&stage.join("everbyte"))?;
    let features = fs::read_to_string(root.join("xtask/debian/FEATURES"))?;
    let glibc = output(Command::new("getconf").arg("GNU_LIBC_VERSION"))?;
    fs::write(stage.join("FEATURES"), features.replace("@GLIBC@", &glibc))?;
    for license in ["LICENSE-MIT", "LICENSE-APACHE"] {
        copy(&root.join(license), &stage.join(license), 0o644)?;
    }
    let archive = format!("{name}.tar.gz");
    let time = format!("--mtime=@{}", build.time.0);
    let mut tar = Command::new("tar");
    tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", &time, "-I", "gzip -9n"]);
    run(tar.args(["-cf", &archive, &name]).current_dir(&folder))?;
    let sums = output(Command::new("sha256sum").arg(&archive).current_dir(&folder))?;
    fs::write(folder.join("SHA256SUMS"), sums + "\n")?;
    println!("{}", folder.join(archive).display());
    Ok(())
}

impl<'a> Build<'a> {
    fn new(root: &'a Path, args: &PackageArgs) -> Result<Self> {
        // Folders and files of a package have these rights, for any rights of its builder's files.
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
        let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
        let time = |form: &str| {
            let form = format!("--format={form}");
            output(Command::new("git").args(["log", "-1", &form]).current_dir(root))
        };
        let target = root.join(target.unwrap_or_else(|| "target".into()));
        Ok(Self { root, target, debug: args.debug, time: (time("%ct")?, time("%cD")?) })
    }

    fn profile(&self) -> &'static str {
        if self.debug { "debug" } else { "release" }
    }

    fn cargo(&self, words: &[&str], more: &[&str]) -> Result<()> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let profile: &[&str] = if self.debug { &[] } else { &["--release"] };
        let mut cargo = Command::new(cargo);
        cargo.args(words).args(["--locked", "--quiet"]).args(profile).args(more);
        run(cargo.current_dir(self.root))
    }

    /// Writes manual pages and completions of `program` to `folder`.
    fn make_pages(&self, program: &Path, folder: &Path) -> Result<()> {
        clear(folder)?;
        run(Command::new(program).arg("man").arg("--dir").arg(folder.join("man")))?;
        for shell in ["bash", "zsh", "fish"] {
            let script = output(Command::new(program).args(["completions", shell]))?;
            fs::write(folder.join(format!("everbyte.{shell}")), script + "\n")?;
        }
        Ok(())
    }

    /// Adds the documents of Debian's policy and the control files of a package.
    fn describe(&self, package: &str, stage: &Path) -> Result<()> {
        let data = self.root.join("xtask/debian");
        let (doc, control) = (stage.join("usr/share/doc").join(package), stage.join("DEBIAN"));
        copy(&data.join("copyright"), &doc.join("copyright"), 0o644)?;
        let changelog = format!(
            "{package} ({VERSION}) unstable; urgency=medium\n\n  * Built from the sources of this version.\n\n -- {MAINTAINER}  {}\n",
            self.time.1
        );
        fs::write(doc.join("changelog"), changelog)?;
        compress(&doc.join("changelog"))?;
        for name in ["conffiles", "postinst", "prerm", "postrm", "shlibs", "triggers"] {
            let (from, to) = (data.join(package).join(name), control.join(name));
            let mode = if name.starts_with('p') { 0o755 } else { 0o644 };
            if from.exists() {
                copy(&from, &to, mode)?;
            }
        }
        let mut find = Command::new("find");
        find.args([".", "-path", "./DEBIAN", "-prune", "-o", "-type", "f", "-printf", "%P\n"]);
        let files = output(find.current_dir(stage))?;
        let mut files: Vec<&str> = files.lines().collect();
        files.sort_unstable();
        let sums = output(Command::new("md5sum").args(&files).current_dir(stage))?;
        let bytes = files.iter().map(|file| Ok(fs::metadata(stage.join(file))?.len()));
        let bytes: u64 = bytes.sum::<Result<u64>>()?;
        let glibc = files.iter().map(|file| Ok(glibc_of(&fs::read(stage.join(file))?)));
        let glibc = glibc.collect::<Result<Vec<_>>>()?.into_iter().max().unwrap_or_default();
        let text = fs::read_to_string(data.join(package).join("control"))?;
        let (name, rest) = text.split_once('\n').context("an empty control file")?;
        let fields = format!(
            "Version: {VERSION}\nArchitecture: amd64\nMaintainer: {MAINTAINER}\nPriority: optional\n\
             Installed-Size: {}\nDepends: libc6 (>= 2.{glibc}), libgcc-s1\n",
            bytes.div_ceil(1024)
        );
        fs::write(control.join("md5sums"), sums + "\n")?;
        fs::write(control.join("control"), format!("{name}\n{fields}{rest}"))?;
        Ok(())
    }
}

/// The newest version of glibc with a symbol used by a program, as the number after `2.`. Debian's libc6 has this version.
fn glibc_of(program: &[u8]) -> u32 {
    const MARK: &[u8] = b"GLIBC_2.";
    if !program.starts_with(b"\x7fELF") {
        return 0;
    }
    let places = program.windows(MARK.len()).enumerate().filter(|(_, bytes)| *bytes == MARK);
    let numbers = places.map(|(at, _)| {
        let digits =
            program[at + MARK.len()..].iter().take(3).take_while(|byte| byte.is_ascii_digit());
        digits.fold(0, |number, digit| number * 10 + u32::from(digit - b'0'))
    });
    numbers.max().unwrap_or_default()
}

/// Puts the file of a line of `files` into the package.
fn put(line: &str, source: impl Fn(&str) -> PathBuf, stage: &Path) -> Result<()> {
    let [mode, from, to] = line.split_whitespace().collect::<Vec<_>>()[..] else {
        bail!("not three words")
    };
    let to = stage.join(to);
    match mode {
        "dir" => fs::create_dir_all(&to)?,
        "link" => {
            fs::create_dir_all(to.parent().context("no folder")?)?;
            symlink(from, &to)?;
        }
        "gz" => {
            let from = source(from);
            let pages = if from.is_dir() {
                let entries = fs::read_dir(&from)?.map(|entry| Ok(entry?.path()));
                entries.collect::<Result<Vec<_>>>()?
            } else {
                vec![from]
            };
            for page in pages {
                let copied = to.join(page.file_name().context("no name")?);
                copy(&page, &copied, 0o644)?;
                compress(&copied)?;
            }
        }
        mode => {
            copy(&source(from), &to, u32::from_str_radix(mode, 8)?)?;
            if ["build/", "region/"].iter().any(|built| from.starts_with(built)) {
                strip(&to)?;
            }
        }
    }
    Ok(())
}

fn copy(from: &Path, to: &Path, mode: u32) -> Result<()> {
    fs::create_dir_all(to.parent().context("no folder")?)?;
    fs::copy(from, to).with_context(|| from.display().to_string())?;
    Ok(fs::set_permissions(to, fs::Permissions::from_mode(mode))?)
}

fn clear(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    Ok(fs::create_dir_all(folder)?)
}

fn compress(page: &Path) -> Result<()> {
    run(Command::new("gzip").arg("-9n").arg(page))
}

fn strip(program: &Path) -> Result<()> {
    run(Command::new("strip").args(["--strip-unneeded", "-R", ".comment"]).arg(program))
}

fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot run {command:?}"))?;
    if status.success() { Ok(()) } else { bail!("{command:?}: {status}") }
}

fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8(output.stdout)?.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn glibc_version_is_newest_symbol() {
        assert_eq!(glibc_of(b"\x7fELF GLIBC_2.4\0GLIBC_2.34\0GLIBC_2.2.5\0"), 34);
        assert_eq!(glibc_of(b"a text with GLIBC_2.99"), 0);
        assert_eq!(glibc_of(b"\x7fELF GLIBC_2."), 0);
    }
}
