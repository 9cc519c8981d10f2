//! Reliable datagram extended transport header (IBA 9.3.1).

layout! {
    /// In every packet of RD: the end-to-end context that makes it reliable (IBA 9.3.1).
    pub struct Rdeth: 4 bytes {
        1:0   24  ee_context: u32,
    }
}
