//! The contract between the engine and an adapter (IBA 10, 11).
//!
//! The contract is one trait, [`Device`], and its types. Posts and polls take batches. The software
//! adapter, libibverbs and mlx5 implement the trait. [`DeviceAttributes`] states the capabilities
//! of an adapter; a missing capability gives an error and is never emulated silently.
//!
//! Read in this order:
//!
//! 1. [`device`]: the trait, its guarantees and its ownership rules;
//! 2. [`memory`]: protection domains, memory regions, memory windows, keys and access rights;
//! 3. [`work`] and [`completion`]: work requests and their completions;
//! 4. [`qp`] and [`transition`]: queue pairs and the table of their state transitions;
//! 5. [`address`], [`event`], [`error`]: address vectors, asynchronous events and errors;
//! 6. [`check`]: argument checks, for implementers;
//! 7. [`time`] and [`rng`]: time stamps and random numbers, which callers pass in everywhere;
//! 8. [`table`]: the handle table, for implementers;
//! 9. [`drops`]: drop counters, which crates above share;
//! 10. [`rmpp`]: transfers of tables in MADs, for the subnet administrator and its clients.
//!
//! The crate `pollux-conformance` is the test suite that every adapter must pass. Its cases are
//! also examples of every verb.
#![forbid(unsafe_code)]

pub mod address;
pub mod check;
pub mod completion;
pub mod device;
pub mod drops;
pub mod error;
pub mod event;
pub mod memory;
pub mod qp;
pub mod rmpp;
pub mod rng;
pub mod table;
pub mod time;
pub mod transition;
pub mod work;

pub use address::{AddressVector, GlobalRoute};
pub use completion::{Completion, CompletionKind, CompletionStatus, Source, With};
pub use device::{Arm, Device, DeviceAttributes, PortAttributes, WakeSource};
pub use error::{PostError, PostRefusal, VerbsError};
pub use event::AsyncEvent;
pub use memory::{Access, Ah, Cq, LKey, MemoryRegion, MemoryWindow, Pd, Qp, RKey, Srq};
pub use qp::{Migration, QpAttributes, QpInit, QpState, QpType, Retries};
pub use work::{Data, Destination, RecvRequest, Remote, SendFlags, SendOp, SendRequest, Sge};
