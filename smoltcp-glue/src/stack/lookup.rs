//! Hash tables for a lookup per packet. Remote hosts choose the keys, so the hash has a secret. The
//! iteration order of a table must not decide anything.
//!
//! Why not the standard hash: it takes some 240 instructions for an address and a port, more than
//! all other work for a datagram. This hash multiplies each word by a secret factor, as the
//! neighbor table does.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

#[expect(clippy::disallowed_types, reason = "it is looked up; its order decides nothing")]
pub(super) type Lookup<K, V> = std::collections::HashMap<K, V, Secret>;

/// Finds the entry for a local address: that of the address itself, or that of the unspecified
/// address of its family.
pub(super) fn find_bound<V: Copy>(table: &Lookup<SocketAddr, V>, address: SocketAddr) -> Option<V> {
    let any: IpAddr = match address {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    table.get(&address).or_else(|| table.get(&SocketAddr::new(any, address.port()))).copied()
}

#[derive(Clone, Copy)]
pub(super) struct Secret {
    first: u64,
    factor: u64,
}

impl Default for Secret {
    fn default() -> Self {
        let seed = RandomState::new();
        Self { first: seed.hash_one(0), factor: seed.hash_one(1) | 1 }
    }
}

impl BuildHasher for Secret {
    type Hasher = Folding;

    #[inline]
    fn build_hasher(&self) -> Folding {
        Folding { state: self.first, factor: self.factor }
    }
}

/// The factor of the final step, from the golden ratio. Without it, some secret factors give
/// consecutive words hashes with the same low bits.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The hasher. It multiplies each word, and combines both halves of the product.
pub(super) struct Folding {
    state: u64,
    factor: u64,
}

impl Hasher for Folding {
    #[inline]
    fn write_u64(&mut self, word: u64) {
        self.state = fold(self.state ^ word, self.factor);
    }

    fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            self.write_u64(u64::from_ne_bytes(word));
        }
    }

    #[inline]
    fn write_u16(&mut self, word: u16) {
        self.write_u64(word.into());
    }

    #[inline]
    fn write_u32(&mut self, word: u32) {
        self.write_u64(word.into());
    }

    #[inline]
    fn write_u128(&mut self, word: u128) {
        self.write_u64(word as u64);
        self.write_u64((word >> 64) as u64);
    }

    #[inline]
    fn write_isize(&mut self, word: isize) {
        self.write_u64(word as u64);
    }

    #[inline]
    fn finish(&self) -> u64 {
        fold(self.state, GOLDEN)
    }
}

#[inline]
const fn fold(word: u64, factor: u64) -> u64 {
    let product = word as u128 * factor as u128;
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
impl Secret {
    /// A secret whose hashes need the factor [`GOLDEN`].
    pub(super) const CROWDING: Self = Self { first: 0, factor: 0xffff_fedc_ba98_73ff };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn consecutive_addresses_do_not_collide() {
        addresses_do_not_collide(Secret { first: 7, factor: 0x9e37_79b9_7f4a_7c15 });
        addresses_do_not_collide(Secret::CROWDING);
    }

    fn addresses_do_not_collide(secret: Secret) {
        let v4 = |nth: u16| IpAddr::from([10, 0, nth.to_be_bytes()[0], nth.to_be_bytes()[1]]);
        let v6 = |nth: u16| IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, nth]);
        let by_port = (0..1 << 12).map(|port| SocketAddr::new(v4(1), port));
        let by_host = (0..1 << 12).map(|nth| SocketAddr::new(v4(nth), 80));
        let by_host_v6 = (0..1 << 12).map(|nth| SocketAddr::new(v6(nth), 80));
        for addresses in [by_port.collect::<Vec<_>>(), by_host.collect(), by_host_v6.collect()] {
            let hashes: Vec<_> = addresses.iter().map(|one| secret.hash_one(one)).collect();
            // A hash table uses the low bits as index, and the high ones to tell entries apart.
            let slots: BTreeSet<_> = hashes.iter().map(|hash| hash & 0xfff).collect();
            let tags: BTreeSet<_> = hashes.iter().map(|hash| hash >> 57).collect();
            // Random hashes would fill 63 of 100 slots.
            assert!(slots.len() > 2300, "{} slots of 4096", slots.len());
            assert_eq!(tags.len(), 128);
            assert_eq!(hashes.iter().collect::<BTreeSet<_>>().len(), addresses.len());
        }
    }

    #[test]
    fn a_hash_depends_on_the_order_of_words_and_on_the_secret() {
        let hash = |secret: Secret, words: [u64; 2]| secret.hash_one(words);
        let secret = Secret::default();
        assert_ne!(hash(secret, [1, 2]), hash(secret, [2, 1]));
        assert_ne!(hash(secret, [0, 0]), hash(secret, [0, 1]));
        assert_ne!(hash(secret, [1, 2]), hash(Secret::default(), [1, 2]));
    }
}
