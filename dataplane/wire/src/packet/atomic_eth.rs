//! Headers of atomic requests and atomic acknowledgements (IBA 9.3.4, 9.3.5.2).

layout! {
    /// The header of a compare-and-swap or fetch-and-add request (IBA 9.3.4).
    pub struct AtomicEth: 28 bytes {
        /// Virtual address at the responder; a multiple of eight.
        0:0   64  va: u64,
        8:0   32  rkey: u32,
        /// The value to swap in, or to add.
        12:0  64  swap_or_add: u64,
        /// The value to compare with; unused by fetch-and-add.
        20:0  64  compare: u64,
    }
}

layout! {
    /// The header of an atomic acknowledgement, behind the AETH (IBA 9.3.5.2).
    pub struct AtomicAckEth: 8 bytes {
        /// The value before the operation.
        0:0   64  original: u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_at_its_offset() {
        let bytes: [u8; 28] = core::array::from_fn(|i| i as u8);
        let header = AtomicEth::parse(&bytes);
        assert_eq!(header.va, 0x0001_0203_0405_0607);
        assert_eq!(header.rkey, 0x0809_0a0b);
        assert_eq!(header.swap_or_add, 0x0c0d_0e0f_1011_1213);
        assert_eq!(header.compare, 0x1415_1617_1819_1a1b);
        assert_eq!(header.emit(), bytes);
    }
}
