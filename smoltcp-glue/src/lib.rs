//! Sockets in the application's own process, over InfiniBand.
//!
//! [`stack`] is all of it that decides something, without I/O.
#![forbid(unsafe_code)]

pub mod stack;
