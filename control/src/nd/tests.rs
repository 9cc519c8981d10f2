//! Questions and answers octet by octet, duplicates, and hostile packets.
