//! Unmodified InfiniBand programs at a software subnet: what they say of it, and what OpenSM makes
//! of it.

mod programs;
mod tests;
