//! Notices and traps (IBA 13.4.8.2).
