//! Performance management: the counters of a port (IBA 16.1).
