//! Every format that Pollux puts on a wire or takes off it, and nothing else.
//!
//! Bytes only: no I/O, no clock, no allocation (`no_std` enforces that) and no `unsafe`. A parser
//! here is total: any bytes give a value or a [`WireError`], never a panic.
//!
//! Read in this order:
//!
//! 1. [`mod@layout`]: how a table of offsets becomes a type, once for all formats; [`mod@codes`]
//!    and [`mod@flags`]: fields whose values, or bits, have names;
//! 2. [`address`], [`keys`], [`psn`], [`units`]: field types that all formats share;
//! 3. [`packet`]: packets on a link, LRH to VCRC;
//! 4. [`mad`]: management datagrams: subnet management, administration, performance, connections;
//! 5. [`ip`]: IP over InfiniBand, ARP, neighbor discovery, and the IP family itself;
//! 6. [`ethernet`]: frames and their addresses;
//! 7. [`netlink`]: the Linux kernel's links, addresses, routes and nexthop objects;
//! 8. [`capture`] and [`pcapng`]: packets into a file that public dissectors read.
//!
//! Names mean the same everywhere. `read` takes a format off the front of the bytes and returns the
//! rest; `write` puts it at the front of the output and returns the rest; `parse` and `emit` have
//! no rest. `wire_len` is a length in bytes. `write` leaves checksums zero: `fill_checksum`
//! computes them and `checksum_ok` verifies them.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

#[macro_use]
pub mod layout;
#[macro_use]
pub mod codes;
#[macro_use]
pub mod flags;

pub mod address;
pub mod capture;
pub mod ethernet;
pub mod ip;
pub mod keys;
pub mod mad;
pub mod netlink;
pub mod packet;
pub mod pcapng;
pub mod psn;
pub mod units;

pub use layout::WireError;
