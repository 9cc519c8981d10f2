//! A ConnectX in software, for programs that are preloaded with this library.
//!
//! The genuine rdma-core libraries run in the program. This library plays what is below them: the
//! kernel's interfaces (`interpose`, `commands`), and the adapter, which reads the work queue
//! entries that libmlx5 writes and writes the completions that it reads (`hca`). Behind it is a
//! port of a fabric in software, `soft:PATH@NODE`, which the variable `POLLUX_DEVICE` names.
//!
//! A card keeps the pages of memory that is registered when a program unmaps it, and some libraries
//! do: UCX deregisters its buffers later. Here `shared_pages` keeps those of long regions; other
//! memory that is no longer mapped faults when a message reaches it.
//!
//! Read in this order: `wqe` and `cqe` are formats, `doorbell` the pages and records, `write_watch`
//! the sleep at them; `objects` is what a program has made, `shared_pages` its memory that peers
//! can map, `mappings` what is mapped, `events` how it is notified, `hca` the adapter; `abi` and
//! `commands` are the kernel's part, with `qp_attributes`; `user_memory` copies from and to the
//! program; `process` is the thread and its lock, with `fork`, `signals` and `panics`; `umad` are
//! management datagrams, `rdma_cm` is the connection manager, `sysfs` are the paths of devices,
//! `fd_set` the descriptors of all; `store_rules`, `store_trap` and `store_steps` judge the
//! program's stores, if the variable `POLLUX_TRAP` is set; `interpose` the functions of libc that
//! the program calls here first, `verbs_table` those of libibverbs; `missing` reports what is not
//! there.

#![allow(unsafe_code, reason = "functions of libc, and memory of the program")]
#![deny(unsafe_op_in_unsafe_fn)]
#![cfg_attr(test, allow(dead_code, reason = "only `interpose` calls it, which tests leave out"))]

mod abi;
mod commands;
mod cqe;
mod doorbell;
mod events;
mod fd_set;
mod fork;
mod hca;
#[cfg(not(test))]
mod interpose;
mod mappings;
mod missing;
mod objects;
mod panics;
mod process;
mod qp_attributes;
mod rdma_cm;
mod shared_pages;
mod signals;
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only x86-64 is stepped"))]
mod store_rules;
mod store_steps;
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only x86-64 is stepped"))]
mod store_trap;
mod sysfs;
mod umad;
mod user_memory;
#[cfg(not(test))]
mod verbs_table;
mod wqe;
mod write_watch;
