//! Links between adapters, with captures and fault injection.
//!
//! An adapter knows only [`Link`]. [`world`] joins adapters in one thread and virtual time, with
//! [`fault`] rules and captures; [`threads`] joins two adapters in two threads.

pub mod fault;
pub mod threads;
pub mod world;

pub use pollux_hca::{FrameSink, Link};
