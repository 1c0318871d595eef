//! Those who make requests: the kernel passes a user and a group of each, and tells of the rest in `/proc`.

use std::io;

use fuser::Request;

/// Returns true if the process that made `request` is in the group `gid`. One that has gone, or that this
/// process cannot see, is in none but its own.
pub(crate) fn is_in_group(request: &Request, gid: u32) -> bool {
    request.gid() == gid || status(request).is_ok_and(|status| names_group(&status, gid))
}

/// Returns true if the process that made `request` administers the system. One that has gone, or that this process
/// cannot see, does if it is root's.
pub(crate) fn is_administrator(request: &Request) -> bool {
    request.uid() == 0 || status(request).is_ok_and(|status| has_sys_admin(&status))
}

fn status(request: &Request) -> io::Result<String> {
    std::fs::read_to_string(format!("/proc/{}/status", request.pid()))
}

/// Returns true if `CAP_SYS_ADMIN` is among the effective capabilities in a process's status.
fn has_sys_admin(status: &str) -> bool {
    const CAP_SYS_ADMIN: u32 = 21;
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    effective.is_some_and(|bits| bits >> CAP_SYS_ADMIN & 1 == 1)
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
    fn administrators_are_found_in_a_status() {
        for bits in ["000001ffffffffff", "0000000000200000"] {
            assert!(has_sys_admin(&format!("Name:\tcat\nCapEff:\t{bits}\n")), "{bits}");
        }
        for status in ["CapPrm:\t0000000000200000\nCapEff:\t00000000ffdfffff\n", "CapEff:\tx\n", ""]
        {
            assert!(!has_sys_admin(status), "{status}");
        }
    }
}
