//! Threads, clock and devices around the state machines of the other crates.
//!
//! 1. [`config`]: what a node is to be, as a file says; [`device`]: whatever it sends by, opened by
//!    name; [`port`]: what several interfaces share there;
//! 2. [`interface`]: what control decides, carried out at a device; [`node`]: interfaces on the
//!    machine's clock;
//! 3. [`fabric`]: a software fabric that runs in a thread, with processes at its ports;
//! 4. [`admin`]: the socket at which either is asked.
#![forbid(unsafe_code)]

pub mod admin;
pub mod config;
pub mod device;
pub mod fabric;
pub mod interface;
pub mod node;
pub mod port;

pub use device::{OpenError, Opened, open};
