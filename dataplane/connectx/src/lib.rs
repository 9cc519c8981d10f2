//! A ConnectX in software, for programs that preload this library.
//!
//! The program uses the genuine rdma-core libraries. This library replaces the layers below them:
//! the kernel's interfaces (`interpose`, `commands`), and the adapter (`hca`), which reads the work
//! queue entries that libmlx5 writes, and writes the completions that libmlx5 reads. The adapter is
//! attached to a port of a software fabric, `soft:PATH@NODE`, which the environment variable
//! `POLLUX_DEVICE` names.
//!
//! With a card, the pages of a registered region stay pinned if the program unmaps them before it
//! deregisters the region, as UCX does. Here, `shared_pages` keeps the pages of long regions. Other
//! registered memory that is no longer mapped causes a fault when a message reaches it.
//!
//! Read the modules in this order:
//!
//! 1. `wqe`, `cqe`: the formats of queue entries; `doorbell`: doorbell pages; `write_watch`: the
//!    sleep until a doorbell is rung;
//! 2. `objects`: the objects of a program; `shared_pages`: registered memory that peers can map;
//!    `mappings`: the memory mappings of the process; `events`: event queues; `hca`: the adapter;
//! 3. `abi`, `commands`, `qp_attributes`: the kernel's verbs interface; `user_memory`: copies from
//!    and to the program;
//! 4. `process`: the adapter of the process with its thread and lock; `fork`, `signals`, `panics`:
//!    how it coexists with the program;
//! 5. `umad`: management datagrams; `rdma_cm`: the connection manager; `sysfs`: paths of devices;
//!    `fd_set`: the descriptors of device files;
//! 6. `interpose`: the functions that replace those of libc; `verbs_table`: the functions that
//!    replace those of libibverbs; `missing`: reports unsupported requests;
//! 7. `store_rules`, `store_trap`, `store_steps`: check the program's stores to doorbells, if the
//!    environment variable `POLLUX_TRAP` is set.

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
