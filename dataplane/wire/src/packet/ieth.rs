//! Invalidate extended transport header (IBA 9.3.7).

layout! {
    /// In the packet that ends a SEND with invalidate (IBA 9.3.7).
    pub struct Ieth: 4 bytes {
        0:0   32  rkey: u32,
    }
}
