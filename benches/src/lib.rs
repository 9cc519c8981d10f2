//! The harness: what Pollux costs, beside what others cost on the same cores in the same run.
//!
//! Read in this order:
//!
//! 1. [`plan`]: what can be measured; [`pair`]: two ends that do it, in threads or processes;
//! 2. [`verbs`], [`sockets`]: the layers; [`samples`]: how times are counted;
//! 3. [`peers`]: programs of others, and [`machine`]: what the cores can do at best;
//! 4. [`compare`]: all of that in turns, as ratios; [`environment`]: where it was measured.
#![forbid(unsafe_code)]

pub mod bring_up;
pub mod compare;
pub mod environment;
pub mod error;
pub mod exchange;
pub mod fabric;
pub mod machine;
pub mod pair;
pub mod peers;
pub mod plan;
pub mod samples;
pub mod sockets;
pub mod verbs;
