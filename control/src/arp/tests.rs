//! Questions and answers octet by octet, conflicts, and hostile packets.
