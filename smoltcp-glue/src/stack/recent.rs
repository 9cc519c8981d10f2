//! The address pairs of recently sent datagrams. An ICMP error about any other pair is ignored; RFC
//! 5927 4 has such a check only for TCP.
//!
//! The table is set-associative and contains hashes; each set keeps its newest ones. Repeated
//! datagrams to one IPv4 peer cost two comparisons each.

use super::lookup::Secret;
use std::hash::BuildHasher;
use std::net::SocketAddr;

const SETS: usize = 1024;
const WAYS: usize = 4;

type Ends = (SocketAddr, SocketAddr);

#[derive(Default)]
pub(super) struct Recent {
    secret: Secret,
    /// The last IPv4 pair: addresses, and ports.
    last: (u64, u32),
    /// Hashes, in each set the newest first; 0 is an empty entry. Allocated at the first datagram.
    sets: Vec<[u64; WAYS]>,
}

impl Recent {
    #[inline]
    pub(super) fn note(&mut self, ends: Ends) {
        if let (SocketAddr::V4(from), SocketAddr::V4(to)) = ends {
            let addresses = u64::from(from.ip().to_bits()) << 32 | u64::from(to.ip().to_bits());
            let words = (addresses, u32::from(from.port()) << 16 | u32::from(to.port()));
            if words == self.last {
                return;
            }
            self.last = words;
        }
        self.insert(ends);
    }

    fn insert(&mut self, ends: Ends) {
        self.sets.resize(SETS, [0; WAYS]);
        let hash = self.hash(ends);
        let set = &mut self.sets[hash as usize % SETS];
        let known = set.iter().position(|one| *one == hash).unwrap_or(WAYS - 1);
        set[..=known].rotate_right(1);
        set[0] = hash;
    }

    pub(super) fn contains(&self, ends: Ends) -> bool {
        let hash = self.hash(ends);
        self.sets.get(hash as usize % SETS).is_some_and(|set| set.contains(&hash))
    }

    fn hash(&self, ends: Ends) -> u64 {
        self.secret.hash_one(ends) | 1 << 63
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(port: u16) -> Ends {
        (SocketAddr::from(([10, 0, 0, 1], 7)), SocketAddr::from(([10, 0, 0, 2], port)))
    }

    #[test]
    fn the_newest_pairs_are_known_with_any_secret() {
        (0..50).for_each(|_| note_all_ports(Recent::default()));
        note_all_ports(Recent { secret: Secret::CROWDING, ..Recent::default() });
    }

    fn note_all_ports(mut recent: Recent) {
        assert!(!recent.contains(ends(0)));
        for port in 0..u16::MAX {
            recent.note(ends(port));
            assert!(recent.contains(ends(port)));
            recent.note(ends(u16::MAX));
        }
        assert!(recent.contains(ends(u16::MAX)), "a repeated pair stays");
        let known = (0..u16::MAX).filter(|port| recent.contains(ends(*port))).count();
        // With some secrets, a set gets fewer than it can hold.
        assert!((SETS * WAYS * 9 / 10..SETS * WAYS).contains(&known), "{known} are known");
        let newest = (1..=100).filter(|nth| recent.contains(ends(u16::MAX - nth))).count();
        assert!(newest >= 90, "{newest} of the newest 100 are known");
    }
}
