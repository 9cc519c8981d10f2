//! The rings: [`send`], [`receive`], [`shared`] and [`completion`] queues.
//!
//! Each keeps its own indices, counts entries without end, and takes the count modulo the length of
//! the ring for a place in it. The entries that the adapter may read are those up to the doorbell
//! record.

pub(crate) mod completion;
pub(crate) mod receive;
pub(crate) mod send;
pub(crate) mod shared;
#[cfg(test)]
mod tests;
