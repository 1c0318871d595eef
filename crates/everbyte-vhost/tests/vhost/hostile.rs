//! Hostile guests and virtual machines. Each test also serves another guest in the same process.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use vhost::VhostBackend;
use vhost::vhost_user::VhostUserFrontend;
use vhost::vhost_user::message::VhostUserInflight;

use crate::guest::{
    DATA, GUEST, Guest, Host, IN, INDIRECT, MEMORY_LEN, NEXT, OUT, QUEUE_SIZE, STATUS, WRITE,
    addresses, memory, region,
};

/// Runs an attack, and checks that the host serves the next guest, and another host its old one.
fn attack(attack: impl FnOnce(&Host, &mut Guest)) {
    let (host, other) = (Host::new(false), Host::new(false));
    let mut bystander = Guest::new(&other, 1, 0);
    assert_eq!(bystander.write(0, 0, &[4; 512]), 0);
    let mut guest = Guest::new(&host, 1, 0);
    assert_eq!(guest.write(0, 0, &[3; 512]), 0);
    attack(&host, &mut guest);
    drop(guest);
    assert_eq!(bystander.read(0, 0, 512), (0, vec![4; 512]));
    let mut next = Guest::new(&host, 1, 0);
    assert_eq!(next.read(0, 0, 512), (0, vec![3; 512]), "the attack has changed the disk");
}

/// Submits the chain at descriptor 0. The chain must fail, and the connection must stay.
fn fails(guest: &mut Guest) {
    guest.publish(0, 0);
    guest.kick(0);
    let (head, _) = guest.answer(0).expect("the chain has no answer");
    assert_eq!(head, 0);
    assert_ne!(guest.status(0, 0), 0, "the chain succeeded");
    assert_eq!(guest.read(0, 0, 512), (0, vec![3; 512]));
    guest.put(0, STATUS, &[0xff]);
}

#[test]
fn invalid_chains_fail_alone() {
    attack(|_, guest| {
        let status = (Guest::address(0, STATUS), 1, WRITE, 0);
        let data = Guest::address(0, DATA);
        let set = |guest: &Guest, chain: &[(u64, u32, u16, u16)]| {
            for (index, descriptor) in (0..).zip(chain) {
                guest.descriptor(0, 0, index, *descriptor);
            }
            guest.put(0, STATUS, &[0xff]);
        };
        let header = guest.header(0, 0, OUT, 0);
        let end = GUEST + MEMORY_LEN;
        let table = Guest::address(0, 0x80000);
        let chains: &[&[(u64, u32, u16, u16)]] = &[
            // Loops.
            &[(header, 16, NEXT, 0)],
            &[(header, 16, NEXT, 1), (data, 512, NEXT, 0)],
            // Outside the table, and outside the memory.
            &[(header, 16, NEXT, QUEUE_SIZE)],
            &[(header, 16, NEXT, 1), (end - 100, 512, NEXT, 2), status],
            &[(header, 16, NEXT, 1), (u64::MAX - 5, 512, NEXT, 2), status],
            &[(header, 16, NEXT, 1), (0, 512, NEXT, 2), status],
            &[(header, 16, NEXT, 1), (data, u32::MAX, NEXT, 2), status],
            &[(header, 16, NEXT, 1), (data, 512, NEXT, 2), (end, 1, WRITE, 0)],
            // No status, no header, a short header, and the wrong order.
            &[(header, 16, NEXT, 1), (data, 512, 0, 0)],
            &[status],
            &[(header, 15, NEXT, 1), status],
            &[status, (header, 16, 0, 0)],
            &[(header, 16, NEXT, 1), (data, 512, NEXT | WRITE, 2), (data, 512, NEXT, 3), status],
            // Not whole sectors.
            &[(header, 16, NEXT, 1), (data, 511, NEXT, 2), status],
            // Indirect tables: of odd length, empty, endless, and within one another.
            &[(table, 33, INDIRECT, 0)],
            &[(table, 0, INDIRECT, 0)],
            &[(table, u32::MAX - 15, INDIRECT, 0)],
            &[(table, 32, INDIRECT | NEXT, 1), status],
            &[(table, 32, INDIRECT, 0)],
            &[(end - 16, 32, INDIRECT, 0)],
        ];
        guest.descriptor(0, 0x80000, 0, (table, 32, INDIRECT, 0));
        for chain in chains {
            guest.header(0, 0, OUT, 0);
            set(guest, chain);
            // Slot 0 of later reads has the same descriptors, so each chain is written anew.
            fails(guest);
        }
    });
}

#[test]
fn lying_header_fails_alone() {
    attack(|_, guest| {
        for (kind, sector, len) in [
            (OUT, u64::MAX, 512),
            (OUT, u64::MAX / 512, 512),
            (OUT, 8192, 512),
            (IN, 8191, 1024),
            (IN, u64::MAX / 512 + 1, 512),
            (u32::MAX, 0, 512),
            (11, 0, 15),
            (13, 0, 4096),
        ] {
            let status = guest.execute(0, kind, sector, len);
            assert!([1, 2].contains(&status), "{kind} {sector} {len}: {status}");
        }
    });
}

#[test]
fn invalid_ring_ends_connection() {
    // A head outside the table.
    attack(|_, guest| {
        guest.publish(0, QUEUE_SIZE);
        guest.kick(0);
        assert!(guest.is_disconnected());
    });
    // More requests than the ring has.
    attack(|_, guest| {
        guest.set_avail(0, 3000);
        guest.kick(0);
        assert!(guest.is_disconnected());
    });
}

#[test]
fn truncated_memory_ends_connection() {
    attack(|_, guest| {
        guest.memory.set_len(0).unwrap();
        guest.kick(0);
        assert!(guest.is_disconnected());
    });
    // Only the payload is missing: zeroes must not be written.
    attack(|_, guest| {
        let header = guest.header(0, 0, OUT, 0);
        let gone = 1 << 20;
        guest.descriptor(0, 0, 0, (header, 16, NEXT, 1));
        guest.descriptor(0, 0, 1, (GUEST + gone, 512, NEXT, 2));
        guest.descriptor(0, 0, 2, (Guest::address(0, STATUS), 1, WRITE, 0));
        guest.memory.set_len(gone).unwrap();
        guest.publish(0, 0);
        guest.kick(0);
        assert!(guest.is_disconnected());
    });
}

#[test]
fn guest_truncating_during_load_ends_alone() {
    attack(|_, guest| {
        for slot in 0..20 {
            let kind = if slot % 2 == 0 { IN } else { 8 };
            let head = guest.chain(0, slot, kind, 0, 512);
            guest.publish(0, head);
        }
        guest.kick(0);
        guest.memory.set_len(4096).unwrap();
        guest.kick(0);
        // If the requests were quicker, the next look at the ring ends it.
        assert!(guest.is_disconnected());
    });
}

#[test]
fn wrong_descriptors_are_refused() {
    let host = Host::new(false);
    let other = memory();
    let refused = |attempt: &dyn Fn(&mut Guest) -> bool| {
        let mut guest = Guest::new(&host, 1, 0);
        assert!(attempt(&mut guest), "it was accepted");
    };
    // A memory that is shorter than said, no file, or at impossible addresses.
    let short = other.try_clone().unwrap();
    short.set_len(4096).unwrap();
    refused(&|guest| guest.frontend.set_mem_table(&[region(&short)]).is_err());
    let null = File::open("/dev/null").unwrap();
    refused(&|guest| guest.frontend.set_mem_table(&[region(&null)]).is_err());
    let twice = memory();
    refused(&|guest| guest.frontend.set_mem_table(&[region(&twice), region(&twice)]).is_err());
    refused(&|guest| guest.frontend.add_mem_region(&region(&twice)).is_err());
    refused(&|guest| {
        let mut overflow = region(&twice);
        overflow.guest_phys_addr = u64::MAX - 4096;
        guest.frontend.set_mem_table(&[overflow]).is_err()
    });
    // Rings outside the memory, of impossible sizes, and without memory.
    refused(&|guest| {
        let mut outside = addresses(0);
        outside.used_ring_addr += MEMORY_LEN - 0x2000 - 4;
        guest.frontend.set_vring_addr(0, &outside).is_err()
    });
    refused(&|guest| guest.frontend.set_vring_num(0, 0).is_err());
    refused(&|guest| guest.frontend.set_vring_num(0, 100).is_err());
    refused(&|guest| guest.frontend.set_vring_num(0, 2048).is_err());
    // A kick that is always ready.
    refused(&|guest| {
        use std::os::fd::{FromRawFd, IntoRawFd};
        let file = File::open("/dev/zero").unwrap();
        // SAFETY: the descriptor of `file`, which gives it up.
        let event = unsafe { vmm_sys_util::eventfd::EventFd::from_raw_fd(file.into_raw_fd()) };
        guest.frontend.set_vring_kick(0, &event).is_err()
    });
    let mut guest = Guest::new(&host, 1, 0);
    assert_eq!(guest.write(0, 0, &[3; 512]), 0);
}

#[test]
fn forged_inflight_region_is_harmless() {
    let inflight = VhostUserInflight::new(2048, 0, 1, QUEUE_SIZE);
    // All bytes set: each descriptor is in flight, and each link leads outside.
    attack(|host, guest| {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[0xff; 2048], 0).unwrap();
        file.write_all_at(&1_u16.to_le_bytes(), 8).unwrap();
        let set = guest.frontend.set_inflight_fd(&inflight, file.as_raw_fd());
        set.unwrap();
        assert_eq!(guest.read(0, 0, 512).0, 0);
        assert!(host.take_events().len() < 10);
    });
    // Each descriptor says that it was taken. The ring has no chain for most of them.
    attack(|_, guest| {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[1; 2048], 0).unwrap();
        file.write_all_at(&1_u16.to_le_bytes(), 8).unwrap();
        // Answers of a forged region may exceed the ring. Then the connection ends.
        let _ = guest.frontend.set_inflight_fd(&inflight, file.as_raw_fd());
        let _ = guest.frontend.get_features();
    });
    attack(|_, guest| {
        let file = tempfile::tempfile().unwrap();
        file.set_len(100).unwrap();
        assert!(guest.frontend.set_inflight_fd(&inflight, file.as_raw_fd()).is_err());
    });
    attack(|_, guest| {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 20).unwrap();
        let short = VhostUserInflight::new(100, 0, 1, QUEUE_SIZE);
        assert!(guest.frontend.set_inflight_fd(&short, file.as_raw_fd()).is_err());
    });
}

#[test]
fn truncated_inflight_region_ends_connection() {
    attack(|_, guest| {
        let wanted = VhostUserInflight::new(0, 0, 1, QUEUE_SIZE);
        let (inflight, file) = guest.frontend.get_inflight_fd(&wanted).unwrap();
        guest.frontend.set_inflight_fd(&inflight, file.as_raw_fd()).unwrap();
        assert_eq!(guest.read(0, 0, 512).0, 0);
        file.set_len(0).unwrap();
        let head = guest.chain(0, 0, IN, 0, 512);
        guest.publish(0, head);
        guest.kick(0);
        assert!(guest.is_disconnected());
    });
}

#[test]
fn random_rings_never_harm_the_server() {
    let mut rng = SmallRng::seed_from_u64(47);
    let (host, other) = (Host::new(false), Host::new(false));
    let mut bystander = Guest::new(&other, 1, 0);
    for _ in 0..150 {
        let mut guest = Guest::new(&host, 1, 0);
        for _ in 0..8 {
            // Mostly plausible values: wholly random ones fail at the first check.
            for index in 0..12 {
                let address = match rng.random_range(0..8) {
                    0 => rng.random(),
                    1 => GUEST + MEMORY_LEN - rng.random_range(0..600),
                    2 => guest.header(0, index, rng.random_range(0..15), rng.random_range(0..9000)),
                    _ => Guest::address(0, rng.random_range(0..0x20000)),
                };
                let lens = [0, 1, 16, 32, 512, 4096, 65536, rng.random()];
                let len = lens[rng.random_range(0..lens.len())];
                let flags = rng.random_range(0..8);
                guest.descriptor(0, 0, index, (address, len, flags, rng.random_range(0..13)));
            }
            guest.publish(0, rng.random_range(0..13));
            guest.kick(0);
        }
        // All are answered or the connection ends: the requests may have changed the rings.
        if guest.frontend.get_vring_base(0).is_ok() {
            guest.memory.set_len(rng.random_range(0..MEMORY_LEN)).unwrap();
        }
    }
    assert_eq!(bystander.write(0, 0, &[4; 512]), 0);
    assert_eq!(Guest::new(&host, 1, 0).read(0, 0, 512).0, 0);
}

#[test]
fn random_messages_never_harm_the_server() {
    let mut rng = SmallRng::seed_from_u64(48);
    let (host, other) = (Host::new(false), Host::new(false));
    let mut bystander = Guest::new(&other, 1, 0);
    for _ in 0..300 {
        let mut socket = UnixStream::connect(&host.path).unwrap();
        for _ in 0..20 {
            let len: u32 = [0, 8, 16, 20, 32, 40, 300][rng.random_range(0..7)];
            let announced = if rng.random_range(0..9) == 0 { rng.random() } else { len };
            let mut message = rng.random_range(0_u32..45).to_le_bytes().to_vec();
            message.extend(1_u32.to_le_bytes());
            message.extend(announced.to_le_bytes());
            message.extend((0..len).map(|_| if rng.random() { 0 } else { rng.random::<u8>() }));
            // The server may have ended the connection.
            if socket.write_all(&message).is_err() {
                break;
            }
        }
    }
    assert_eq!(bystander.write(0, 0, &[4; 512]), 0);
    assert_eq!(Guest::new(&host, 1, 0).read(0, 0, 512).0, 0);
}
