//! All wire formats that Pollux sends or receives, and nothing else.
//!
//! This crate has no I/O, no clock, no allocation (enforced by `no_std`) and no `unsafe`. Every
//! parser is total: any input gives a value or a [`WireError`], never a panic.
//!
//! Read in this order:
//!
//! 1. [`mod@layout`]: the macro that makes a type from a table of offsets; [`mod@codes`] and
//!    [`mod@flags`]: types for fields with named values or named bits;
//! 2. [`address`], [`keys`], [`psn`], [`units`]: shared field types;
//! 3. [`packet`]: packets on a link, LRH to VCRC;
//! 4. [`mad`]: management datagrams for subnet management, subnet administration, performance and
//!    connection management;
//! 5. [`ip`]: IP over InfiniBand, ARP, neighbor discovery, and the IP family itself;
//! 6. [`ethernet`]: Ethernet frames and addresses;
//! 7. [`netlink`]: the Linux kernel's links, addresses, routes and nexthop objects;
//! 8. [`capture`] and [`pcapng`]: capture files that Wireshark reads.
//!
//! Function names have the same meaning in all modules. `read` parses a format at the front of the
//! input and returns the rest of the input too. `write` puts a format at the front of the output
//! and returns the rest of the output. `parse` and `emit` return no rest. `wire_len` is a length in
//! bytes. The `write` of a message leaves its checksum zero; `fill_checksum` computes the checksum,
//! and `checksum_ok` verifies it.
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
