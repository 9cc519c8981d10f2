//! Buffer pools, rings and shared memory: packet memory and its transfer between threads and
//! processes.
//!
//! The subject is ownership of bytes and the order in which writes become visible. Nothing here
//! reads a clock or interprets packets, and only the files of item 8 use devices. Read in this
//! order:
//!
//! 1. [`region`], [`segment`]: pages from the kernel, private or shared between processes;
//! 2. [`pool`], [`pool::buf`], [`free_list`]: fixed-size buffers in a region, owned by value;
//! 3. [`mpsc`], [`byte_ring`]: rings between threads of one process, which trust each other;
//!    `cursor`: positions in a ring, [`pad`]: cache lines, `sync`: atomics, or loom's;
//! 4. [`words`], [`shared_ring`], [`seq_cell`], [`counters`]: shared memory of two processes that
//!    do not trust each other. All of it is accessed as atomic words, so the only `unsafe` code is
//!    that which makes words out of a region;
//! 5. [`one_writer`], [`lease`]: words that one process writes and others only read, and the lease
//!    by which a sender revokes memory that others copy from; [`sleep_word`]: the word by which a
//!    receiver announces that it sleeps;
//! 6. [`memory`]: registered memory, which adapters and their peers may write at any time;
//! 7. [`snapshot`]: tables that one thread publishes and others read without waiting;
//!    [`prefetch`]: loads of such tables for a batch at once;
//! 8. [`tun`], [`net_device`], [`packet_socket`], [`xdp`]: devices of the kernel and their frames,
//!    which are here because ioctls, tables of pointers and rings of the kernel are `unsafe`;
//!    [`system_call`]: errors of system calls; [`inherited`]: descriptors that a process was
//!    started with.
//!
//! Three rules hold everywhere. Full and empty are results, not errors. No hot operation takes a
//! lock, a system call or an allocation. Another process can stop the data flow by what it writes,
//! but it can never make this process read or write out of bounds.
#![allow(unsafe_code, reason = "raw pages, slots that are written before they are values")]
#![deny(unsafe_op_in_unsafe_fn)]

#[cfg(not(target_pointer_width = "64"))]
compile_error!("pollux-mem assumes 64-bit addresses");

pub mod byte_ring;
pub mod counters;
mod cursor;
pub mod free_list;
pub mod inherited;
pub mod lease;
pub mod memory;
pub mod mpsc;
pub mod net_device;
pub mod one_writer;
pub mod packet_socket;
pub mod pad;
pub mod pool;
pub mod prefetch;
pub mod region;
pub mod segment;
pub mod seq_cell;
pub mod shared_ring;
pub mod sleep_word;
pub mod snapshot;
mod sync;
pub mod system_call;
pub mod tun;
pub mod words;
pub mod xdp;

pub use lease::{Lease, LeaseReader};
pub use memory::Memory;
pub use one_writer::{OwnWords, PeerWords};
pub use pad::CachePadded;
pub use pool::buf::Buf;
pub use pool::{Cache, Pool, PoolConfig};
pub use region::Region;
pub use segment::Segment;
pub use words::{Plain, ReadWords, Words};
