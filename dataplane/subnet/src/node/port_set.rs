//! A set of ports of one switch.

/// A bit for each port number: the ports to which a multicast packet is copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortSet([u64; 4]);

impl PortSet {
    pub const EMPTY: Self = Self([0; 4]);

    #[inline]
    pub fn contains(&self, port: u8) -> bool {
        self.0[usize::from(port / 64)] >> (port % 64) & 1 != 0
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        *self == Self::EMPTY
    }

    #[inline]
    pub fn remove(&mut self, port: u8) {
        self.0[usize::from(port / 64)] &= !(1 << (port % 64));
    }

    #[inline]
    pub fn insert(&mut self, port: u8) {
        self.0[usize::from(port / 64)] |= 1 << (port % 64);
    }

    /// The 16 ports from number 16 * `position` on, the first one in the lowest bit.
    pub fn sixteen(&self, position: u8) -> u16 {
        (self.0[usize::from(position / 4 % 4)] >> (position % 4 * 16)) as u16
    }

    pub fn set_sixteen(&mut self, position: u8, ports: u16) {
        let (word, shift) = (&mut self.0[usize::from(position / 4 % 4)], position % 4 * 16);
        *word = *word & !(0xffff << shift) | u64::from(ports) << shift;
    }

    #[inline]
    pub fn iter(self) -> impl Iterator<Item = u8> {
        (0..4u8).flat_map(move |word| {
            let mut bits = self.0[usize::from(word)];
            std::iter::from_fn(move || {
                let bit = bits.trailing_zeros() as u8;
                bits &= bits.wrapping_sub(1);
                (bit < 64).then(|| word * 64 + bit)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_come_out_as_they_went_in() {
        let ports = [0, 1, 15, 16, 63, 64, 200, 255];
        let mut set = PortSet::EMPTY;
        ports.iter().for_each(|&port| set.insert(port));
        assert!(set.iter().eq(ports));
        assert!((0..=255).all(|port| set.contains(port) == ports.contains(&port)));
        assert_eq!((set.sixteen(0), set.sixteen(12), set.sixteen(15)), (0x8003, 0x0100, 0x8000));
        set.set_sixteen(15, 0x0002);
        set.remove(1);
        assert!(set.iter().eq([0, 15, 16, 63, 64, 200, 241]));
    }
}
