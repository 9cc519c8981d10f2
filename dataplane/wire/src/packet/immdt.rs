//! Immediate data: 32 bits for the receiver's completion (IBA 9.3.6).

layout! {
    /// Behind all other headers of the packet that ends a message with immediate data (IBA 9.3.6).
    pub struct ImmDt: 4 bytes {
        0:0   32  data: u32,
    }
}
