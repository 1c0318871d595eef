//! The callers of requests: the kernel passes a user and a group of each, and reports the rest in
//! `/proc`.

use std::io;

use fuser::Request;

/// The number of the capability to act as the owner of any file.
const CAP_FOWNER: u32 = 3;
/// The number of the capability to change the immutable and the append-only flag.
const CAP_LINUX_IMMUTABLE: u32 = 9;
/// The number of the capability to keep set-user-id and set-group-id bits of changed files.
const CAP_FSETID: u32 = 4;
/// The number of the capability to administer the system.
const CAP_SYS_ADMIN: u32 = 21;

/// Returns true if the caller of `request` is in the group `gid`. An ended or invisible process is
/// only in the group of its request.
pub(crate) fn is_in_group(request: &Request, gid: u32) -> bool {
    request.gid() == gid || status(request).is_ok_and(|status| names_group(&status, gid))
}

/// Returns true if the caller of `request` administers the system. For an ended or invisible
/// process this means that it is root's.
pub(crate) fn is_administrator(request: &Request) -> bool {
    request.uid() == 0 || is_capable(request, CAP_SYS_ADMIN)
}

/// Returns true if files keep their set-user-id and set-group-id bits when the caller of `request`
/// changes them.
pub(crate) fn keeps_privileges(request: &Request) -> bool {
    is_capable(request, CAP_FSETID)
}

/// Returns true if the caller of `request` may act as the owner of a file of user `uid`.
pub(crate) fn owns_files_of(request: &Request, uid: u32) -> bool {
    request.uid() == uid || is_capable(request, CAP_FOWNER)
}

/// Returns true if the caller of `request` may change the immutable and the append-only flag.
pub(crate) fn changes_flags(request: &Request) -> bool {
    is_capable(request, CAP_LINUX_IMMUTABLE)
}

/// Returns true if the caller of `request` has a capability over the files of this process's user
/// namespace. An ended or invisible process has all capabilities if it is root's, otherwise none.
fn is_capable(request: &Request, capability: u32) -> bool {
    // The process may have ended, because a killed caller does not wait for the answer.
    let Ok(status) = status(request) else { return request.uid() == 0 };
    let namespace = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/user"));
    let is_outside = match (namespace(&request.pid().to_string()), namespace("self")) {
        (Ok(callers), Ok(own)) => callers != own,
        // A server without CAP_SYS_PTRACE cannot see it. A user's own namespace gives all
        // capabilities, but never the number 0 of root.
        _ => request.uid() != 0,
    };
    // A capability within another user namespace gives no power over the files of this one.
    !is_outside && has_capability(&status, capability)
}

fn status(request: &Request) -> io::Result<String> {
    std::fs::read_to_string(format!("/proc/{}/status", request.pid()))
}

/// Returns true if a capability is among the effective ones in a process's status.
fn has_capability(status: &str, capability: u32) -> bool {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    effective.is_some_and(|bits| bits >> capability & 1 == 1)
}

/// Returns true if `gid` is among the supplementary groups in a process's status.
fn names_group(status: &str, gid: u32) -> bool {
    let groups = status.lines().find_map(|line| line.strip_prefix("Groups:"));
    groups.is_some_and(|all| all.split_whitespace().any(|group| group.parse() == Ok(gid)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_found_in_a_status() {
        let status = "Name:\tcat\nGid:\t7\t7\t7\t7\nGroups:\t4 24 100 \nNStgid:\t5\n";
        for (gid, is_there) in [(4, true), (100, true), (7, false), (10, false), (5, false)] {
            assert_eq!(names_group(status, gid), is_there, "{gid}");
        }
        assert!(!names_group("Name:\tcat\n", 4));
    }

    #[test]
    fn status_names_administrators() {
        for bits in ["000001ffffffffff", "0000000000200000"] {
            assert!(
                has_capability(&format!("Name:\tcat\nCapEff:\t{bits}\n"), CAP_SYS_ADMIN),
                "{bits}"
            );
        }
        for status in ["CapPrm:\t0000000000200000\nCapEff:\t00000000ffdfffff\n", "CapEff:\tx\n", ""]
        {
            assert!(!has_capability(status, CAP_SYS_ADMIN), "{status}");
        }
    }
}
