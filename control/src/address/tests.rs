//! Lifetimes, choices and limits.
