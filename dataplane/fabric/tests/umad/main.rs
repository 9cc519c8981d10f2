//! Unmodified InfiniBand programs at a software subnet: what they say of it, and what OpenSM makes
//! of it.

mod managers;
mod picture;
mod programs;
mod tests;
