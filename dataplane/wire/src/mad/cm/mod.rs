//! Communication management: the messages that make and end connections (IBA 12.6).
