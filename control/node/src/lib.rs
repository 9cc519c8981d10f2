//! Threads, clock and devices around the state machines of the other crates.
//!
//! 1. [`config`]: what a node is to be, as a file says; [`device`]: whatever it sends by, opened by
//!    name;
//! 2. [`interface`]: what control decides, carried out at a device;
//! 3. [`fabric`]: a software fabric that runs in a thread, answers questions, and has processes at
//!    its ports.
#![forbid(unsafe_code)]

pub mod config;
pub mod device;
pub mod fabric;
pub mod interface;

pub use device::{OpenError, Opened, open};
