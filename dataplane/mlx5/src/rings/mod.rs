//! The rings: [`send`], [`receive`], [`shared`] and [`completion`] queues.
//!
//! Each ring keeps its own indices, which increase and wrap. The slot of an entry is its index
//! modulo the length of the ring. The adapter may read the entries up to the index in the doorbell
//! record.

pub(crate) mod completion;
pub(crate) mod receive;
pub(crate) mod send;
pub(crate) mod shared;
#[cfg(test)]
mod tests;
