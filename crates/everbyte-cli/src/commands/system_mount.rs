//! The program as `mount.everbyte` and `mount.fuse.everbyte`: mount(8) and systemd run it for lines
//! of fstab and for `mount -t everbyte`, with mount(8)'s documented arguments for external helpers.
//!
//! Invariant: at status 0 the mount is ready and has the requested options.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use everbyte_server::{Remount, remount};

use super::mount_background;
use super::mount_options::OptionList;
use crate::output;

/// Names of the program as a helper of mount(8).
const NAMES: [&str; 2] = ["mount.everbyte", "mount.fuse.everbyte"];
/// Prefix of the source in the list of mounts.
const SOURCE_PREFIX: &[u8] = b"everbyte:";
/// Status for a wrong command line, by mount(8).
const USAGE_STATUS: u8 = 1;
/// Status for a failed mount, by mount(8).
const FAILED_STATUS: u8 = 32;

const USAGE: &str = "\
usage: mount.everbyte POOL/VOLUME DIR [-fnsv] [-o OPTION,...]

mount(8) runs this program for file systems of the types everbyte and fuse.everbyte.
Options: ro rw noexec nosuid nodev noatime nodiratime relatime strictatime allow_other remount
threads=N checkpoint_interval=TIME. 'everbyte mount --help' explains them.";

/// Returns true if the program was started as a helper of mount(8).
pub(crate) fn is_invoked() -> bool {
    let program = std::env::args_os().next().unwrap_or_default();
    let name = Path::new(&program).file_name().unwrap_or_default();
    NAMES.iter().any(|helper| name == *helper)
}

/// Arguments of a helper.
#[derive(Debug, Default, PartialEq, Eq)]
struct Arguments {
    target: PathBuf,
    dir: PathBuf,
    options: OptionList,
    /// The list as typed, for the server process.
    list: String,
    /// Everything but the mount is done.
    is_fake: bool,
}

/// Runs the helper with the arguments of this process.
pub(crate) fn run() -> ExitCode {
    let arguments = match Arguments::new(std::env::args_os().skip(1)) {
        Ok(arguments) => arguments,
        Err(error) => {
            output::complain(format!("mount.everbyte: {error}\n\n{USAGE}"));
            return ExitCode::from(USAGE_STATUS);
        }
    };
    match mount(&arguments) {
        Ok(code) => code,
        Err(error) => {
            output::complain(format!("mount.everbyte: {error:#}"));
            ExitCode::from(FAILED_STATUS)
        }
    }
}

fn mount(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    if arguments.is_fake {
        return Ok(ExitCode::SUCCESS);
    }
    if arguments.options.remount {
        let dir = &arguments.dir;
        remount(dir, &changes(&arguments.options))
            .with_context(|| format!("cannot remount {}", dir.display()))?;
        return Ok(ExitCode::SUCCESS);
    }
    // A child serves: mount(8) waits for this process, which must end once the files can be used.
    let mut command: Vec<OsString> = vec!["mount".into(), "--detached".into()];
    if !arguments.list.is_empty() {
        command.extend(["-o".into(), OsString::from(&arguments.list)]);
    }
    // A pool or directory whose name begins with a dash is no option.
    command.extend(["--".into(), arguments.target.clone().into(), arguments.dir.clone().into()]);
    let code = mount_background::start(command, true)?;
    // mount(8) knows 32 as a failed mount. Other numbers mean other things there.
    Ok(if code == ExitCode::SUCCESS { code } else { ExitCode::from(FAILED_STATUS) })
}

/// Changes of a remount. mount(8) passes the complete list of options without its defaults, so a missing `noexec` means
/// `exec`. A missing `nosuid` or `nodev` changes nothing: a remount never grants rights.
fn changes(options: &OptionList) -> Remount {
    // A remount may only take these rights away: granting them needs a new judgement of the pool.
    let denied = |allowed: Option<bool>| allowed.filter(|allowed| !allowed);
    Remount {
        read_only: options.read_only,
        suid: denied(options.suid),
        dev: denied(options.dev),
        exec: Some(options.exec.unwrap_or(true)),
        access_times: options.atime.map(Into::into),
    }
}

impl Arguments {
    fn new(words: impl Iterator<Item = OsString>) -> Result<Self, String> {
        let (mut found, mut places) = (Self::default(), Vec::new());
        let mut is_sloppy = false;
        let mut words = words;
        while let Some(word) = words.next() {
            let text = word.to_str().unwrap_or_default();
            match text.strip_prefix('-') {
                None | Some("") => places.push(word),
                Some("o") => found.add(&words.next().ok_or("-o needs a list of options")?)?,
                // The type is known: the name of this program is part of it.
                Some("t") => {
                    words.next().ok_or("-t needs a type")?;
                }
                Some(flags) => {
                    for flag in flags.chars() {
                        match flag {
                            'f' => found.is_fake = true,
                            's' => is_sloppy = true,
                            'n' | 'v' | 'w' => {}
                            'r' => found.add(OsStr::new("ro"))?,
                            _ => {
                                return Err(format!("option -{} is unknown", flags.escape_debug()));
                            }
                        }
                    }
                }
            }
        }
        let Ok([target, dir]) = <[OsString; 2]>::try_from(places) else {
            return Err("name a volume and a directory".into());
        };
        found.target = without_prefix(target);
        found.dir = dir.into();
        found.options = match is_sloppy {
            // With -s mount(8) wants unknown options dropped instead of an error.
            true => {
                let known = |word: &&str| word.parse::<OptionList>().is_ok();
                found.list = found.list.split(',').filter(known).collect::<Vec<_>>().join(",");
                found.list.parse()?
            }
            false => found.list.parse()?,
        };
        Ok(found)
    }

    fn add(&mut self, list: &OsStr) -> Result<(), String> {
        let list = list.to_str().ok_or("the list of options is not UTF-8 text")?;
        if !self.list.is_empty() {
            self.list.push(',');
        }
        self.list.push_str(list);
        Ok(())
    }
}

/// The path of a source as the list of mounts shows it, or as typed.
fn without_prefix(source: OsString) -> PathBuf {
    let bytes = source.as_bytes();
    let path = bytes.strip_prefix(SOURCE_PREFIX).unwrap_or(bytes);
    OsString::from_vec(path.to_vec()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Arguments, String> {
        Arguments::new(line.split_whitespace().map(OsString::from))
    }

    #[test]
    fn helper_arguments_of_mount_are_read() {
        let arguments = parse("everbyte:/p/v /mnt -n -o rw,noexec -t fuse.everbyte").unwrap();
        assert_eq!(arguments.target, Path::new("/p/v"));
        assert_eq!(arguments.dir, Path::new("/mnt"));
        assert_eq!(arguments.options.exec, Some(false));
        assert_eq!(arguments.list, "rw,noexec");
        assert_eq!(parse("-o ro,remount /p/v /mnt").unwrap().options.read_only, Some(true));
    }

    #[test]
    fn helper_sloppy_drops_unknown_options() {
        assert!(parse("/p/v /mnt -o quota,ro").is_err());
        let arguments = parse("/p/v /mnt -s -o quota,ro").unwrap();
        assert_eq!(arguments.list, "ro");
        assert_eq!(arguments.options.read_only, Some(true));
    }

    #[test]
    fn helper_wrong_usage_is_refused() {
        for wrong in ["", "/p/v", "/p/v /a /b", "/p/v /a -o", "/p/v /a -N 5", "/p/v /a --help"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
