//! Options of a mount in the syntax of mount(8) and fstab(5): words between commas.
//!
//! Invariants: the last word for a property counts, as in mount(8). A word without effect is an error, unless mount(8),
//! systemd or the list of mounts adds the word.

use std::time::Duration;

use everbyte_fs::AccessTimes;

use crate::size::parse_duration;

/// Words for other programs, and names of the only behavior.
const IGNORED: [&str; 15] = [
    "defaults",
    "auto",
    "noauto",
    "nouser",
    "nofail",
    "_netdev",
    "async",
    "silent",
    "loud",
    "nolazytime",
    "noiversion",
    "nomand",
    "symfollow",
    "default_permissions",
    "nostrictatime",
];
/// Prefixes of words for other programs.
const IGNORED_PREFIXES: [&str; 5] = ["x-", "X-", "comment=", "uhelper=", "helper="];
/// Prefixes in the list of mounts of each FUSE mount. A remount passes these words again.
const FUSE_PREFIXES: [&str; 6] =
    ["user_id=", "group_id=", "rootmode=", "fd=", "max_read=", "blksize="];

/// Reads with a change of the time of the last access.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, clap::ValueEnum)]
pub(crate) enum Atime {
    /// The first after a change of the file, and one a day.
    #[default]
    Relative,
    /// None.
    Never,
    /// All.
    Strict,
}

impl From<Atime> for AccessTimes {
    fn from(atime: Atime) -> Self {
        match atime {
            Atime::Relative => Self::Relative,
            Atime::Never => Self::Never,
            Atime::Strict => Self::Strict,
        }
    }
}

/// Options of a mount. `None` leaves a property at its default, or as it is at a remount.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OptionList {
    pub(crate) remount: bool,
    pub(crate) read_only: Option<bool>,
    pub(crate) suid: Option<bool>,
    pub(crate) dev: Option<bool>,
    pub(crate) exec: Option<bool>,
    pub(crate) atime: Option<Atime>,
    pub(crate) dir_atime: Option<bool>,
    pub(crate) allow_other: bool,
    pub(crate) threads: Option<u16>,
    pub(crate) checkpoint_interval: Option<Duration>,
}

impl std::str::FromStr for OptionList {
    type Err = String;

    fn from_str(list: &str) -> Result<Self, String> {
        let mut options = Self::default();
        let words = || list.split(',').filter(|word| !word.is_empty());
        // First: the meaning of FUSE's own words depends on it, wherever it stands.
        options.remount = words().any(|word| word == "remount");
        words().try_for_each(|word| options.set(word))?;
        Ok(options)
    }
}

impl OptionList {
    /// Applies one word.
    fn set(&mut self, word: &str) -> Result<(), String> {
        match word {
            "remount" => {}
            "ro" => self.read_only = Some(true),
            "rw" => self.read_only = Some(false),
            "suid" => self.suid = Some(true),
            "nosuid" => self.suid = Some(false),
            "dev" => self.dev = Some(true),
            "nodev" => self.dev = Some(false),
            "exec" => self.exec = Some(true),
            "noexec" => self.exec = Some(false),
            "noatime" | "atime=never" => self.atime = Some(Atime::Never),
            "relatime" | "atime" | "norelatime" | "atime=relative" => {
                self.atime = Some(Atime::Relative);
            }
            "diratime" => self.dir_atime = Some(true),
            "nodiratime" => self.dir_atime = Some(false),
            "strictatime" | "atime=strict" => self.atime = Some(Atime::Strict),
            "allow_other" => self.allow_other = true,
            // mount(8) lets users mount with these, and takes the same rights away.
            "user" | "users" => self.restrict(),
            "owner" | "group" => (self.suid, self.dev) = (Some(false), Some(false)),
            _ => return self.set_value(word),
        }
        Ok(())
    }

    fn restrict(&mut self) {
        (self.suid, self.dev, self.exec) = (Some(false), Some(false), Some(false));
    }

    /// Applies a word with a value, or one without an effect.
    fn set_value(&mut self, word: &str) -> Result<(), String> {
        if IGNORED.contains(&word) || IGNORED_PREFIXES.iter().any(|start| word.starts_with(start)) {
            return Ok(());
        }
        // mount(8) repeats the options of the present mount, which the kernel added.
        if self.remount && FUSE_PREFIXES.iter().any(|start| word.starts_with(start)) {
            return Ok(());
        }
        match word.split_once('=') {
            Some(("user", _)) => self.restrict(),
            Some(("threads", number)) => {
                let threads = number.parse().ok().filter(|threads| (1..=256).contains(threads));
                let wrong = || format!("mount option {word}: the number of threads is 1 to 256");
                self.threads = Some(threads.ok_or_else(wrong)?);
            }
            Some(("checkpoint_interval", time)) => {
                let time = parse_duration(time)
                    .map_err(|error| format!("mount option {word}: {error}"))?;
                self.checkpoint_interval = Some(time);
            }
            _ => return Err(refusal(word)),
        }
        Ok(())
    }
}

/// The reason for rejecting a word.
fn refusal(word: &str) -> String {
    let reason = match word {
        "sync" | "dirsync" => "the kernel's FUSE makes only data durable with it: use fsync",
        "lazytime" => "times are written with the file system's checkpoints: leave it out",
        _ => "everbyte has no such option",
    };
    format!("mount option {}: {reason}", word.escape_debug())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(list: &str) -> OptionList {
        list.parse().unwrap()
    }

    #[test]
    fn option_list_later_word_counts() {
        let options = parse("ro,noexec,rw,user,exec,noatime,strictatime");
        let wanted = OptionList {
            read_only: Some(false),
            suid: Some(false),
            dev: Some(false),
            exec: Some(true),
            atime: Some(Atime::Strict),
            ..OptionList::default()
        };
        assert_eq!(options, wanted);
    }

    #[test]
    fn option_list_owner_takes_rights_away() {
        for word in ["owner", "group"] {
            let options = parse(word);
            assert_eq!((options.suid, options.dev, options.exec), (Some(false), Some(false), None));
        }
    }

    #[test]
    fn option_list_words_of_others_change_nothing() {
        let list = "defaults,_netdev,nofail,noauto,x-systemd.automount,x-systemd.requires=a.mount,\
                    comment=systemd.mount,X-mount.mkdir,,async";
        assert_eq!(parse(list), OptionList::default());
    }

    #[test]
    fn option_list_of_shown_mount_remounts() {
        let shown = "rw,nosuid,nodev,relatime,user_id=0,group_id=0,default_permissions,allow_other";
        assert!(shown.parse::<OptionList>().is_err(), "a new mount has its own descriptor");
        let options = parse(&format!("{shown},remount,ro"));
        assert!(options.remount && options.allow_other);
        assert_eq!(
            (options.read_only, options.suid, options.exec),
            (Some(true), Some(false), None)
        );
    }

    #[test]
    fn option_list_unknown_word_is_named() {
        for wrong in
            ["errors=panic", "sync", "threads=0", "threads=x", "checkpoint_interval=5", "quota"]
        {
            let error = wrong.parse::<OptionList>().unwrap_err();
            assert!(error.contains(wrong), "{error}");
        }
        assert!(!"a\u{1b}[31m".parse::<OptionList>().unwrap_err().contains('\u{1b}'));
    }

    #[test]
    fn option_list_values_have_units_and_limits() {
        let options = parse("threads=256,checkpoint_interval=500ms");
        assert_eq!(options.threads, Some(256));
        assert_eq!(options.checkpoint_interval, Some(Duration::from_millis(500)));
    }
}
