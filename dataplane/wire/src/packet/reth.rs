//! RDMA extended transport header: where in the responder's memory (IBA 9.3.3).

layout! {
    /// In the first packet of an RDMA WRITE, and in an RDMA READ request (IBA 9.3.3).
    pub struct Reth: 16 bytes {
        0:0   64  va: u64,
        8:0   32  rkey: u32,
        /// Bytes of the message.
        12:0  32  dma_len: u32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_header_of_ibas_sample_packet() {
        let bytes =
            [0x01, 0x71, 0x0a, 0x1c, 0x01, 0x5d, 0x40, 0x02, 0x38, 0xf2, 0x7a, 0x05, 0, 0, 0, 14];
        let reth = Reth { va: 0x0171_0a1c_015d_4002, rkey: 0x38f2_7a05, dma_len: 14 };
        assert_eq!(Reth::parse(&bytes), reth);
        assert_eq!(reth.emit(), bytes);
    }
}
