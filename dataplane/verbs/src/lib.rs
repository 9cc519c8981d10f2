//! The contract between the engine and an adapter (IBA 10, 11).
//!
//! One trait, [`Device`], at the grain of batches, and the words that it is spoken in. Every
//! adapter implements it: the one in software, libibverbs, mlx5. What an adapter lacks it says in
//! its [`DeviceAttributes`]; nothing is emulated behind a caller's back.
//!
//! Read in this order:
//!
//! 1. [`device`]: the trait, what it promises, and who owns what;
//! 2. [`memory`]: protection domains, regions, windows, keys and rights;
//! 3. [`work`] and [`completion`]: what is asked of an adapter, and how it went;
//! 4. [`qp`] and [`transition`]: queue pairs, and the table of what their states allow;
//! 5. [`address`], [`event`], [`error`]: the rest of the vocabulary;
//! 6. [`end`]: one end of a connection that is told what to do from elsewhere;
//! 7. [`time`] and [`rng`]: moments and random numbers, which are passed in everywhere;
//! 8. [`table`]: for implementers, where handles come from.
//!
//! The crate `pollux-conformance` is the suite that every adapter must pass, and a good place to
//! learn verbs.
#![forbid(unsafe_code)]

pub mod address;
pub mod completion;
pub mod device;
pub mod end;
pub mod error;
pub mod event;
pub mod memory;
pub mod qp;
pub mod rng;
pub mod table;
pub mod time;
pub mod transition;
pub mod work;

pub use address::{AddressVector, GlobalRoute};
pub use completion::{Completion, CompletionKind, CompletionStatus, Source, With};
pub use device::{Arm, Device, DeviceAttributes, PortAttributes};
pub use error::{PostError, PostRefusal, VerbsError};
pub use event::AsyncEvent;
pub use memory::{Access, Ah, Cq, LKey, MemoryRegion, MemoryWindow, Pd, Qp, RKey, Srq};
pub use qp::{Migration, QpAttributes, QpInit, QpState, QpType, Retries};
pub use work::{Data, Destination, RecvRequest, Remote, SendFlags, SendOp, SendRequest, Sge};
