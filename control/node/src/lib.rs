//! Threads, clock and devices around the state machines of the other crates.
//!
//! So far: [`fabric`], a software fabric that runs in a thread, answers questions, and has
//! processes at its ports; [`device`], whatever a program sends by, opened by name.
#![forbid(unsafe_code)]

pub mod device;
pub mod fabric;

pub use device::{OpenError, Opened, open};
